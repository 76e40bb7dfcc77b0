import contextlib
import json
import os
import pathlib
import resource
import shutil
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.checkpoint import checkpointer as checkpoint
from bamboo_jax.runtime.stage import spec as spec_lib

_META = {"seed": 3, "data": {"sha256": "ab", "sizes": [1, 2]}, "note": None}

_OPTIMIZERS = {
    "adamw": optax.adamw(1e-3),
    "sgd": optax.sgd(1e-2),
    "momentum": optax.sgd(1e-2, momentum=0.9),
    "adafactor": optax.adafactor(1e-3, min_dim_size_to_factor=4),
    "bfloat16_slots": optax.adam(1e-3, mu_dtype=jnp.bfloat16),
    "hyperparams": optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
    "masked": optax.chain(
        optax.clip(1.0),
        optax.masked(optax.adam(1e-3), lambda p: {k: k == "w" for k in p}),
    ),
}


def _layer(seed=0, *, optimizer="adamw", width=4, dtype=np.float32, stats=True):
  """Returns a layer after one update with random numbers."""
  rng = np.random.default_rng(seed)
  params = {
      "w": jnp.asarray(rng.standard_normal((6, width)), dtype),
      "bias": jnp.asarray(rng.standard_normal(width), jnp.bfloat16),
      "scale": jnp.asarray(rng.standard_normal(), jnp.float32),
  }
  optimizer = _OPTIMIZERS[optimizer]
  slots = optimizer.update(params, optimizer.init(params), params)[1]
  numbers = {
      "mean": np.float32([0, 1, 2]),
      "count": np.int32(seed),
      "flag": True,
  }
  numbers |= {"empty": np.zeros((0, 3), np.float16), "none": None}
  return spec_lib.LayerState(params, slots, numbers if stats else {})


def _bare():
  return spec_lib.LayerState({}, _OPTIMIZERS["sgd"].init({}), {})


def _layers(seed=0):
  return {f"block_{i:02d}.mlp": _layer(seed + i) for i in range(3)}


def _layers_with_noise():
  """Returns layers of which the second has 1 MiB that cannot be compressed."""
  layers = _layers()
  noise = np.random.default_rng(0).bytes(1 << 20)
  layers["block_01.mlp"].stats["mean"] = np.frombuffer(noise, np.uint8)
  return layers


def _shapes(layers):
  return {k: jax.eval_shape(lambda v=v: v) for k, v in layers.items()}


def _bits(tree):
  """Returns structure, dtypes, shapes and bytes of a tree."""
  leaves, structure = jax.tree.flatten(tree)
  arrays = [np.asarray(leaf) for leaf in leaves]
  return structure, [(a.dtype, a.shape, a.tobytes()) for a in arrays]


def _biggest_file(path):
  return max(path.rglob("d/*"), key=lambda p: p.stat().st_size)


def _cut(path):
  os.truncate(path, path.stat().st_size // 2)


def _flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


@contextlib.contextmanager
def _file_size_limit(num_bytes):
  """Makes the system refuse larger files to this process."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class CheckpointTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    temp = self.enterContext(tempfile.TemporaryDirectory())
    self.root = pathlib.Path(temp).resolve() / "checkpoints"

  def _open(self, keep=2):
    checkpointer = checkpoint.Checkpointer(self.root, keep=keep)
    self.addCleanup(checkpointer.close)
    return checkpointer

  def _save(self, *steps, keep=2):
    """Saves a state at each step, whose numbers depend on the step."""
    checkpointer = self._open(keep)
    for step in steps:
      checkpointer.save(step, _layers(step), _META)
    checkpointer.wait()
    return checkpointer

  def _assert_restores(self, checkpointer, step):
    layers, meta = checkpointer.restore(step, _shapes(_layers()))
    self.assertEqual(_bits(layers), _bits(_layers(step)))
    self.assertEqual(meta, _META)

  @parameterized.named_parameters((name, name) for name in _OPTIMIZERS)
  def test_round_trip_to_the_bit(self, optimizer):
    layers = {
        name: jax.device_put(_layer(i, optimizer=optimizer), device)
        for i, (name, device) in enumerate(
            zip("zab", jax.devices(), strict=False)
        )
    }
    layers["bare"] = _bare()
    checkpointer = self._open()
    checkpointer.save(7, layers, _META)
    checkpointer.wait()
    restored, meta = self._open().restore(7, _shapes(layers))
    self.assertEqual(_bits(restored), _bits(layers))
    self.assertEqual(list(restored), list(layers))
    self.assertEqual(meta, _META)
    for leaf in jax.tree.leaves(restored):
      self.assertIsInstance(leaf, np.ndarray)

  def test_arrays_may_be_donated_or_changed_after_the_copy(self):
    layers = _layers(2)
    slots = jax.tree.map(np.array, layers["block_00.mlp"].slots)
    layers["block_00.mlp"] = layers["block_00.mlp"].replace(slots=slots)
    copies = layer_arrays.copy_to_host(layers)
    for array in jax.tree.leaves(slots):
      array.fill(0)
    double = jax.jit(
        lambda tree: jax.tree.map(lambda a: a + a, tree), donate_argnums=0
    )
    jax.block_until_ready(double(layers["block_01.mlp"].params))
    self.assertEqual(
        _bits(copies), _bits(layer_arrays.copy_to_host(_layers(2)))
    )

  @parameterized.named_parameters(
      ("one", ["block_01.mlp"]),
      ("another_order", ["block_02.mlp", "block_00.mlp"]),
      ("none", []),
  )
  def test_subset(self, names):
    checkpointer = self._save(2)
    wanted = {name: _layers(2)[name] for name in names}
    restored, _ = checkpointer.restore(2, _shapes(wanted), subset=True)
    self.assertEqual(_bits(restored), _bits(wanted))
    self.assertEqual(list(restored), names)

  @parameterized.named_parameters(
      ("missing", {"head": {}}, "has no layer 'head', .* block_00"),
      ("extra", {"block_02.mlp": None}, "has a layer 'block_02.mlp', which"),
      (
          "shape",
          {"block_01.mlp": {"width": 5}},
          r"in layer 'block_01.mlp', params/bias is bfloat16\[4\] there and "
          r"bfloat16\[5\] in the model",
      ),
      (
          "dtype",
          {"block_01.mlp": {"dtype": jnp.bfloat16}},
          r"params/w is float32\[6,4\] there and bfloat16\[6,4\] in",
      ),
      (
          "optimizer",
          {"block_01.mlp": {"optimizer": "momentum"}},
          r"slots/0/trace/bias is absent there and bfloat16\[4\] in",
      ),
      (
          "smaller_optimizer",
          {"block_01.mlp": {"optimizer": "sgd"}},
          r"slots/0/count is int32\[\] there and absent in",
      ),
      (
          "statistics",
          {"block_01.mlp": {"stats": False}},
          r"stats/count is int32\[\] there and absent in",
      ),
  )
  def test_another_model(self, changes, message):
    checkpointer = self._save(2)
    layers = _layers()
    for name, options in changes.items():
      layers[name] = options if options is None else _layer(**options)
    layers = {k: v for k, v in layers.items() if v is not None}
    with self.assertRaisesRegex(base.CheckpointError, message):
      checkpointer.restore(2, layers)

  @parameterized.named_parameters(
      ("no_manifest", "manifest.json", os.unlink, "there is no manifest.json"),
      ("cut_manifest", "manifest.json", _cut, "damaged"),
      (
          "empty_manifest",
          "manifest.json",
          lambda p: p.write_text("{}"),
          "damaged",
      ),
      ("cut_data", None, _cut, "it should have"),
      ("no_data", None, os.unlink, "is missing"),
      ("nothing", "", shutil.rmtree, "there is no manifest"),
  )
  def test_incomplete_checkpoint_is_not_used(self, name, damage, message):
    checkpointer = self._save(2, 4)
    path = self.root / "4"
    damage(_biggest_file(path) if name is None else path / name)
    path.mkdir(exist_ok=True)
    self.assertEqual(checkpointer.steps(), (2,))
    with self.assertLogs("absl", "WARNING") as logs:
      self.assertEqual(checkpointer.latest_step(), 2)
    self.assertRegex(logs.output[0], message)
    with self.assertRaisesRegex(base.CheckpointError, message):
      checkpointer.restore(4, _layers())
    checkpointer.save(4, _layers(4), _META)
    checkpointer.wait()
    self._assert_restores(checkpointer, 4)

  def test_changed_data_is_not_returned(self):
    checkpointer, big = self._open(), _layers_with_noise()
    checkpointer.save(2, big, _META)
    checkpointer.wait()
    checkpointer.restore(2, big)
    _flip(_biggest_file(self.root / "2"))
    with self.assertRaisesRegex(
        base.CheckpointError, "layer 'block_01.mlp' is not"
    ):
      checkpointer.restore(2, big)

  def test_any_changed_byte_is_found_or_does_no_harm(self):
    checkpointer = self._save(2)
    files = [p for p in (self.root / "2").rglob("*") if p.is_file()]
    self.assertGreater(len(files), 5)
    for path in files:
      if path.name == "manifest.json":
        continue
      content = path.read_bytes()
      _flip(path) if content else None
      with self.subTest(path.name):
        with contextlib.suppress(base.CheckpointError):
          self._assert_restores(checkpointer, 2)
      path.write_bytes(content)
    self._assert_restores(checkpointer, 2)

  def test_manifest_of_another_step(self):
    checkpointer = self._save(2)
    (self.root / "2").rename(self.root / "6")
    self.assertEqual(checkpointer.steps(), ())
    with self.assertRaisesRegex(base.CheckpointError, "is of step 2"):
      checkpointer.restore(6, _layers())

  def test_start_ignores_and_removes_unfinished_saves(self):
    self._save(2)
    shutil.copytree(self.root / "2", self.root / "4.tmp")
    (self.root / "notes").mkdir()
    checkpointer = self._open()
    self.assertEqual(checkpointer.latest_step(), 2)
    self.assertCountEqual(os.listdir(self.root), ["2", "notes"])

  @parameterized.named_parameters(
      ("one", 1, (9,)), ("two", 2, (7, 9)), ("more", 9, (1, 3, 5, 7, 9))
  )
  def test_keep(self, keep, left):
    checkpointer = self._save(1, 3, 5, 7, 9, keep=keep)
    self.assertEqual(checkpointer.steps(), left)
    self.assertCountEqual(os.listdir(self.root), map(str, left))
    self._assert_restores(checkpointer, left[0])

  def test_incomplete_ones_do_not_count_as_kept(self):
    self._save(2)
    for step in (1, 5, 8):
      shutil.copytree(self.root / "2", self.root / str(step))
    checkpointer = self._save(4, keep=1)
    self.assertEqual(checkpointer.steps(), (4,))
    self.assertCountEqual(os.listdir(self.root), ["4", "5", "8"])

  def test_layout(self):
    self._save(2)
    manifest = json.loads((self.root / "2" / "manifest.json").read_text())
    self.assertCountEqual(
        os.listdir(self.root / "2"), ["layers", "manifest.json"]
    )
    self.assertEqual(manifest["step"], 2)
    self.assertEqual(manifest["meta"], _META)
    self.assertEqual(list(manifest["layers"]), list(_layers()))
    layer = manifest["layers"]["block_01.mlp"]
    self.assertEqual(layer["arrays"]["slots/0/nu/w"], "float32[6,4]")
    self.assertLen(layer["sha256"], 64)

  @parameterized.named_parameters(
      ("same_step", 2, _META, "step must be above 2, .* got 2"),
      ("older_step", 1, _META, "step must be above 2, .* got 1"),
      ("tuple", 4, {"sizes": (1, 2)}, "plain JSON .* 'sizes': \\(1, 2\\)"),
      ("array", 4, {"n": np.int32(1)}, "plain JSON values .* 'n'"),
  )
  def test_bad_save(self, step, meta, message):
    checkpointer = self._save(2)
    with self.assertRaisesRegex(ValueError, message):
      checkpointer.save(step, _layers(), meta)

  def test_bad_directory(self):
    self.root.write_text("")
    with self.assertRaisesRegex(base.CheckpointError, "File exists"):
      checkpoint.Checkpointer(self.root, keep=1)
    with self.assertRaisesRegex(ValueError, "keep must be at least 1, got 0"):
      checkpoint.Checkpointer(self.root, keep=0)

  def test_full_disk_keeps_the_previous_checkpoint(self):
    checkpointer, big = self._save(2), _layers_with_noise()
    failed = f"^Cannot save step 4 to {self.root}/4: File too large.$"
    with self.assertNoLogs("absl"), _file_size_limit(1 << 18):
      checkpointer.save(4, big, _META)
      with self.assertRaisesRegex(base.CheckpointError, failed):
        checkpointer.wait()
      checkpointer.save(4, big, _META)
      with self.assertRaisesRegex(base.CheckpointError, failed):
        checkpointer.save(4, big, _META)
    self.assertEqual(checkpointer.steps(), (2,))
    self._assert_restores(checkpointer, 2)
    checkpointer.save(4, _layers(4), _META)  # There is room again.
    checkpointer.close()
    self._assert_restores(self._open(), 4)
    self.assertCountEqual(os.listdir(self.root), ["2", "4"])


if __name__ == "__main__":
  absltest.main()
