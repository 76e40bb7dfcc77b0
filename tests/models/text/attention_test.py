from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import dropout
from bamboo_jax.models.text import attention, cudnn
from tests import plain

RATE = 0.25
LONG = attention._KEEP_LENGTH + 4  # Too long to keep the probabilities.


def plain_attend(qkv, key, num_heads, is_read=None):
  """The formula of the paper, differentiated by JAX."""
  num_examples, length, _ = qkv.shape
  heads = lambda x: x.reshape(num_examples, length, num_heads, -1)
  q, k, v = map(heads, jnp.split(qkv, 3, axis=-1))
  scores = jnp.einsum("sqhk,smhk->shqm", q, k) / jnp.sqrt(q.shape[-1])
  past = np.tril(np.ones((length, length), bool))
  if is_read is not None:
    past = is_read[:, None, None] != 0
  probs = jax.nn.softmax(jnp.where(past, scores, -1e30))
  if key is not None:
    mask = dropout.keep_mask(key, probs.shape, rate=RATE)
    probs = jnp.where(mask, probs / (1 - RATE), 0)
  read = jnp.einsum("shqm,smhk->sqhk", probs, v)
  return read.reshape(num_examples, length, -1)


def attend(qkv, key, num_heads, is_read=None):
  return attention.attend(qkv, key, num_heads=num_heads, dropout_rate=RATE, read_SM=is_read)


def make_qkv(num_examples, length, width, dtype="float32"):
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.normal(size=(num_examples, length, 3 * width)), dtype)


class AttentionTest(parameterized.TestCase):

  @parameterized.parameters(
      ("bfloat16", 512, 128, True),
      ("float32", 512, 128, False),
      ("bfloat16", 256, 128, False),  # Its scores are small.
      ("bfloat16", 512, 60, False),
      ("bfloat16", 512, 136, False),
  )
  def test_heads_for_cudnn(self, dtype, length, width, expected):
    dtype = jnp.dtype(dtype)
    self.assertEqual(cudnn.supports(dtype, length, width), expected)

  @parameterized.product(
      shape=[(2, 5, 12), (1, LONG, 6)], with_dropout=[False, True], with_mask=[False, True]
  )
  def test_equals_autodiff(self, shape, with_dropout, with_mask):
    qkv = make_qkv(*shape)
    is_read = np.arange(shape[1]) % 4 < np.array([[3], [1]])[: shape[0]]
    is_read = is_read.astype(np.int32) if with_mask else None
    key = jax.random.key(3) if with_dropout else None

    def value_and_grad(function):
      loss = lambda qkv: jnp.sin(function(qkv, key, 3, is_read) * 3).sum()
      return jax.jit(jax.value_and_grad(loss))(qkv)

    value, grad = value_and_grad(attend)
    want, want_grad = value_and_grad(plain_attend)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    self.assertLess(plain.relative_error(grad, want_grad), 5e-6)

  def test_bfloat16(self):
    qkv = make_qkv(2, 16, 8, "bfloat16")
    out = attend(qkv, None, 2)
    self.assertEqual(out.dtype, jnp.bfloat16)
    want = plain_attend(qkv.astype(jnp.float32), None, 2)
    self.assertLess(plain.relative_error(np.float32(out), want), 1e-2)

  def test_keeps_no_probabilities_of_long_sequences(self):
    qkv = jax.ShapeDtypeStruct((1, LONG, 12), jnp.float32)

    def residuals(qkv):
      key = jax.random.key(0)
      return jax.vjp(lambda x: attend(x, key, 2), qkv)[1].opaque_residuals

    shapes = [a.shape for a in jax.eval_shape(residuals, qkv)]
    self.assertNotIn((1, 2, LONG, LONG), shapes)
