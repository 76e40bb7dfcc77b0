"""Fingerprints are equal if the bits are, and for nothing else."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.runtime.phases import replicas

_DTYPES = "float32 bfloat16 float16 float8_e4m3fn int32 uint8 int8 bool complex64".split()


def take(*arrays, device=0):
  arrays = jax.device_put(arrays, jax.devices()[device])
  return replicas.read_print(replicas.start_print(arrays))


def oracle(*arrays):
  """Returns the fingerprint in plain Python, word by word."""
  mask, total = 2**32 - 1, 0

  def mix(x):
    x = ((x ^ x >> 16) * 0x85EBCA6B) & mask
    x = ((x ^ x >> 13) * 0xC2B2AE35) & mask
    return x ^ x >> 16

  for array in arrays:
    if np.iscomplexobj(array):
      array = np.stack([array.real, array.imag])
    high = low = 0
    kind = f"u{min(4, array.dtype.itemsize)}"
    for at, word in enumerate(np.asarray(array).ravel().view(kind).tolist()):
      once = mix(word + at * 0x9E3779B1 & mask)
      high += once
      low += (once ^ once >> 15) * 0x27D4EB2F & mask
    lanes = (high & mask) << 32 | low & mask
    total = (total * 0x9E3779B97F4A7C15 + lanes) % 2**64
  return total


class FingerprintTest(parameterized.TestCase):

  @parameterized.parameters(*_DTYPES)
  def test_is_the_sum_over_words_on_any_device(self, dtype):
    rng = np.random.default_rng(0)
    draw = lambda shape: (100 * rng.standard_normal(shape)).astype(jnp.dtype(dtype))
    arrays = [np.asarray(draw(shape)) for shape in ((), (3,), (5, 7), (2, 513))]
    want = oracle(*arrays)
    self.assertEqual(take(*arrays), want)
    self.assertEqual(take(*arrays, device=3), want)
    self.assertNotEqual(take(*arrays[::-1]), want)

  def test_random_keys(self):
    first, second = jax.random.split(jax.random.key(0))
    self.assertEqual(take(first), take(first))
    self.assertNotEqual(take(first), take(second))

  def test_reads_the_array_and_writes_nothing(self):
    shape = jax.ShapeDtypeStruct((1024, 1024), np.float32)
    program = replicas.add_up.lower(shape).compile()
    self.assertLess(program.memory_analysis().temp_size_in_bytes, 1 << 12)
