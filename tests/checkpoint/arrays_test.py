import hashlib

from absl.testing import parameterized
import jax
import numpy as np
import optax

from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.runtime.stage import spec as spec_lib

_ORDER = ("embed", "head")


def _layers():
  """Returns layers with optimizer slots and statistics, no number twice."""
  count = iter(range(1, 1000))
  layers = {}
  for name in reversed(_ORDER):
    params = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float16)}
    slots = optax.adam(1e-3).init(params)
    stats = {"mean": np.zeros(2, np.float32)}
    layers[name] = spec_lib.LayerState(params, slots, stats)
  return jax.tree.map(
      lambda a: np.array([next(count) for _ in range(a.size)], a.dtype).reshape(a.shape), layers
  )


def _state_sha256(layers):
  return layer_arrays.state_sha256(layer_arrays.digest(layers), _ORDER, samples_seen=8)


def _params_sha256(layers):
  return layer_arrays.params_sha256(layer_arrays.digest(layers), _ORDER)


class DigestTest(parameterized.TestCase):

  @parameterized.parameters(
      ([],),
      # One that is not contiguous, an empty one, and a scalar.
      ([np.arange(6, dtype=np.float32).reshape(2, 3).T, np.zeros((0, 4)), np.array(3, np.int32)],),
  )
  def test_is_the_hash_of_the_bytes(self, arrays):
    want = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()
    self.assertEqual(layer_arrays.sha256({f"{i}": array for i, array in enumerate(arrays)}), want)

  def test_hashes_are_those_of_other_versions(self):
    layers = _layers()
    self.assertEqual(_state_sha256(layers)[:16], "cb9cfa361d5fb560")
    found = _params_sha256(layers)
    self.assertEqual(found[:16], "55c0f154409f60aa")

  @parameterized.parameters(("params", True), ("slots", False), ("stats", False))
  def test_params_sha256(self, part, counts):
    layers = _layers()
    before = _params_sha256(layers)
    jax.tree.leaves(getattr(layers["head"], part))[-1].flat[-1] += 1
    after = _params_sha256(layers)
    self.assertEqual(before != after, counts)

  def test_devices_and_dtypes_of_parameters_do_not_count(self):
    layers = _layers()
    on_device = jax.tree.map(jax.numpy.asarray, layers)
    self.assertEqual(_state_sha256(on_device), _state_sha256(layers))
    wide = {
        name: layer.replace(params=jax.tree.map(lambda a: a.astype(np.float32), layer.params))
        for name, layer in layers.items()
    }
    self.assertEqual(_params_sha256(wide), _params_sha256(layers))
