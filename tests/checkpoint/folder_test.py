"""Checkpoints on disk: to the bit, or not at all."""

import dataclasses
import errno
import json
import os
import pathlib
import random
import shutil
import tempfile
from unittest import mock

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    arrays as layer_arrays,
    digest,
    directory,
    folder as folder_lib,
    manifest as manifest_lib,
    orbax_item,
)
from bamboo_jax.runtime.stage import spec as spec_lib
from tests import limits

_META = {"seed": 3, "data": {"sha256": "ab", "sizes": [1, 2]}, "note": None}

_OPTIMIZERS = {
    "adamw": optax.adamw(1e-3),
    "sgd": optax.sgd(1e-2),
    "momentum": optax.sgd(1e-2, momentum=0.9),
    "adafactor": optax.adafactor(1e-3, min_dim_size_to_factor=4),
    "bfloat16_slots": optax.adam(1e-3, mu_dtype=jnp.bfloat16),
    "hyperparams": optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
    "masked": optax.chain(
        optax.clip(1.0), optax.masked(optax.adam(1e-3), lambda p: {k: k == "w" for k in p})
    ),
}


def _make_folder(path, *, keep, check_fence=lambda: None):
  return folder_lib.CheckpointFolder(path, keep=keep, check_fence=check_fence)


def _layer(seed=0, *, optimizer="adamw", width=4, dtype=np.float32, stats=True):
  """Returns a layer with random numbers."""
  params = {
      "w": np.zeros((6, width), dtype),
      "bias": np.zeros(width, jnp.bfloat16),
      "scale": np.zeros((), np.float32),
  }
  slots = jax.eval_shape(_OPTIMIZERS[optimizer].init, params)
  numbers = {
      "mean": np.zeros(3, np.float32),
      "count": np.int32(seed),
      "flag": True,
      "empty": np.zeros((0, 3), np.float16),
      "none": None,
  }
  rng = np.random.default_rng(seed)
  random = lambda a: np.asarray(100 * rng.standard_normal(a.shape), a.dtype)
  params, slots = jax.tree.map(random, (params, slots))
  return spec_lib.LayerState(params, slots, numbers if stats else {})


def _layers(seed=0):
  return {f"block_{i:02d}.mlp": _layer(seed + i) for i in range(3)}


def _layers_with_noise():
  """Returns layers of which the second has 1 MiB that cannot be compressed."""
  layers = _layers()
  noise = np.random.default_rng(0).bytes(1 << 20)
  layers["block_01.mlp"].stats["mean"] = np.frombuffer(noise, np.uint8)
  return layers


def _bits(tree):
  """Returns structure, dtypes, shapes and bytes of a tree."""
  leaves, structure = jax.tree.flatten(tree)
  arrays = [np.asarray(leaf) for leaf in leaves]
  return structure, [(a.dtype, a.shape, a.tobytes()) for a in arrays]


def _biggest_file(path):
  return max(path.rglob("d/*"), key=lambda p: p.stat().st_size)


def _hashes(folder):
  return {
      path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
  }


def _cut(path):
  os.truncate(path, path.stat().st_size // 2)


def _flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


def _invert(path):
  """Inverts all data; of equally large files some are not needed."""
  for file in path.rglob("d/*"):
    file.write_bytes(bytes(0xFF ^ byte for byte in file.read_bytes()))


class FolderTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    temp = self.enterContext(tempfile.TemporaryDirectory())
    self.root = pathlib.Path(temp).resolve() / "checkpoints"
    self.folder = _make_folder(self.root, keep=2)

  def save(self, step, layers=None, *, folder=None, name="v1"):
    """Saves a state, whose numbers depend on the step, in two parts."""
    name = f"{step}.{name}"
    folder, layers = folder or self.folder, layers or _layers(step)
    arrays = layer_arrays.copy_to_host(layers)
    split = {"node0": [*arrays][:1], "node3": [*arrays][1:]}
    parts = [
        folder.write_part(name, item, {k: arrays[k] for k in names}, step=step)
        for item, names in split.items()
    ]
    folder.finish(name, manifest_lib.join(parts, order=list(layers), meta=_META))

  def assert_restores(self, step):
    layers, meta = directory.read(self.root / f"{step}", _layers(), list(_layers()))
    self.assertEqual(_bits(layers), _bits(_layers(step)))
    self.assertEqual(meta, _META)

  @parameterized.named_parameters((name, name) for name in _OPTIMIZERS)
  def test_round_trip_to_the_bit(self, optimizer):
    layers = {
        name: jax.device_put(_layer(i, optimizer=optimizer), device)
        for i, (name, device) in enumerate(zip("zab", jax.devices(), strict=False))
    }
    layers["bare"] = spec_lib.LayerState({}, optax.sgd(1e-2).init({}), {})
    self.save(7, layers)
    shapes = {k: jax.eval_shape(lambda v=v: v) for k, v in layers.items()}
    restored, _ = directory.read(self.root / "7", shapes, list(layers))
    self.assertEqual(_bits(restored), _bits(layers))
    self.assertEqual(list(restored), list(layers))
    for leaf in jax.tree.leaves(restored):
      self.assertIsInstance(leaf, np.ndarray)

  def test_arrays_may_be_donated_or_changed_after_the_copy(self):
    layers = _layers(2)
    on_device = jax.device_put(layers["block_01.mlp"])
    copies = layer_arrays.copy_to_host(layers | {"block_01.mlp": on_device})
    for array in jax.tree.leaves(layers["block_00.mlp"].slots):
      array[...] = 0
    double = jax.jit(lambda tree: jax.tree.map(lambda a: a + a, tree), donate_argnums=0)
    jax.block_until_ready(double(on_device.params))
    wanted = layer_arrays.copy_to_host(_layers(2))
    self.assertEqual(_bits(copies), _bits(wanted))

  @parameterized.parameters(
      (["block_02.mlp", "block_00.mlp"], None), (["block_00.mlp"], "node3"), ([], "node0")
  )
  def test_subset(self, names, damaged):
    self.save(2)
    if damaged is not None:  # Which is not even read.
      _flip(_biggest_file(self.root / "2" / damaged))
    restored, _ = directory.read(self.root / "2", _layers(), names)
    self.assertEqual(_bits(restored), _bits({n: _layers(2)[n] for n in names}))
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
    self.save(2)
    layers = _layers()
    for name, options in changes.items():
      layers[name] = options if options is None else _layer(**options)
    layers = {k: v for k, v in layers.items() if v is not None}
    with self.assertRaisesRegex(base.CheckpointError, message):
      directory.read(self.root / "2", layers, ["block_00.mlp"])  # Whatever is asked for.

  @parameterized.named_parameters(
      ("no_manifest", "manifest.json", os.unlink, "there is no manifest.json"),
      ("cut_manifest", "manifest.json", _cut, "damaged"),
      ("empty_manifest", "manifest.json", lambda p: p.write_text("{}"), "damaged"),
      ("cut_data", None, _cut, "it should have"),
      ("no_data", None, os.unlink, "is missing"),
      ("no_part", "node3", shutil.rmtree, "is missing"),
      ("nothing", "", shutil.rmtree, "there is no manifest"),
  )
  def test_incomplete_checkpoint_is_not_used(self, name, damage, message):
    self.save(2)
    self.save(4)
    path = self.root / "4"
    damage(_biggest_file(path) if name is None else path / name)
    path.mkdir(exist_ok=True)
    with self.assertLogs("absl", "WARNING") as logs:
      self.assertEqual(self.folder.steps(), (2,))
    self.assertRegex(logs.output[0], message)
    with self.assertRaisesRegex(base.CheckpointError, message):
      directory.read(self.root / "4", _layers(), ["block_00.mlp"])
    self.save(4)
    self.assert_restores(4)

  def test_files_that_another_node_removes_meanwhile(self):
    self.save(2)
    shutil.rmtree(self.root / "2" / "node3")
    with mock.patch.object(pathlib.Path, "is_file", return_value=True):
      self.assertEqual(self.folder.steps(), ())

  def test_changed_data_is_not_returned(self):
    big = _layers_with_noise()
    self.save(2, big)
    directory.read(self.root / "2", big, list(big))
    _flip(_biggest_file(self.root / "2"))
    with self.assertRaisesRegex(base.CheckpointError, "layer 'block_01.mlp' is not"):
      directory.read(self.root / "2", big, list(big))

  def test_any_changed_byte_is_found_or_does_no_harm(self):
    self.save(2)
    self.save(4)
    files = [p for p in (self.root / "4").rglob("*") if p.is_file()]
    self.assertGreater(len(files), 5)
    aside, num_set_aside = self.root / "4.damaged", 0
    rng = random.Random(0)
    for path in files:
      content = path.read_bytes()
      for _ in range(5 if content else 0):
        at = rng.randrange(len(content))
        changed = bytearray(content)
        changed[at] ^= rng.randrange(1, 256)
        path.write_bytes(changed)
        with self.subTest(f"{path.relative_to(self.root)} {at}"):
          self.assert_resumes()
          if aside.exists():
            self.assertEqual(self.folder.steps(), (2,))
            aside.rename(self.root / "4")
            num_set_aside += 1
      path.write_bytes(content)
    self.assertGreater(num_set_aside, 10)
    self.assertEqual(self.folder.steps(), (2, 4))

  def assert_resumes(self):
    """Restores as a run does: what it takes for good is as it was saved."""
    step = self.folder.steps()[-1]
    self.folder.set_aside_damaged(step)
    try:
      layers, meta = self.folder.read(step, _layers(), list(_layers()))
    except base.DamagedCheckpointError:
      (step,) = self.folder.steps()
      layers, meta = self.folder.read(step, _layers(), list(_layers()))
    self.assertEqual(_bits(layers), _bits(_layers(step)))
    self.assertEqual(meta, _META)

  @parameterized.named_parameters(
      ("cut_data", None, _cut),
      ("changed_data", "", _invert),
      ("cut_manifest", "manifest.json", _cut),
      ("no_manifest", "manifest.json", os.unlink),
      ("no_part", "node3", shutil.rmtree),
  )
  def test_damaged_one_is_kept_under_another_name(self, name, damage):
    self.save(2)
    for ending in ("damaged", "damaged.2", "damaged.3"):
      self.save(4)
      path = self.root / "4"
      damage(_biggest_file(path) if name is None else path / name)
      damaged = _hashes(path)
      with self.assertLogs("absl", "WARNING") as logs:
        self.assert_resumes()
      self.assertEqual(_hashes(self.root / f"4.{ending}"), damaged)
      self.assertIn(f"It is kept as {self.root}/4.{ending};", str(logs.output))
      self.assertEqual(self.folder.steps(), (2,))
    self.save(6)
    self.assert_restores(6)

  @parameterized.parameters(errno.EIO, errno.ESTALE, errno.EACCES)
  def test_what_cannot_be_read_now_is_not_set_aside(self, code):
    self.save(2)
    self.save(4)
    error = OSError(code, os.strerror(code))
    in_words = ValueError(f"NOT_FOUND: [os_error_code='{code}']")
    for target, raised in (
        ((pathlib.Path, "read_bytes"), error),
        ((orbax_item, "read_item"), error),
        ((orbax_item, "read_item"), in_words),
        ((orbax_item, "read_item"), MemoryError()),
    ):
      with mock.patch.object(*target, side_effect=raised):
        with self.assertRaises(base.CheckpointError) as caught:
          self.folder.read(4, _layers(), list(_layers()))
        self.folder.set_aside_damaged(0)
      self.assertNotIsInstance(caught.exception, base.DamagedCheckpointError, msg=f"{raised}")
    self.assertEqual(self.folder.steps(), (2, 4))

  def test_what_another_version_has_written_is_not_set_aside(self):
    self.save(2)
    self.save(4)
    manifest = manifest_lib.read_manifest(self.root / "4")
    with mock.patch.object(manifest_lib, "_FORMAT", 9):
      manifest_lib.write_manifest(self.root / "4", manifest)
    self.folder.set_aside_damaged(0)
    with self.assertRaisesRegex(base.CheckpointError, "another version"):
      self.folder.read(4, _layers(), [])
    self.assertEqual(self.folder.steps(), (2,))
    self.assertCountEqual(os.listdir(self.root), ["2", "4"])

  def test_manifest_without_a_hash(self):
    """As the first version wrote it."""
    self.save(2)
    path = self.root / "2" / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_text(json.dumps(content | {"format": 1}))
    self.assert_restores(2)
    path.write_text(json.dumps(content | {"format": 2}))
    self.assertEqual(self.folder.steps(), ())

  def test_manifest_of_another_step(self):
    self.save(2)
    (self.root / "2").rename(self.root / "6")
    self.assertEqual(self.folder.steps(), ())
    with self.assertRaisesRegex(base.CheckpointError, "is of step 2"):
      directory.read(self.root / "6", _layers(), [])

  def test_order_on_disk(self):
    # What would be lost if the power failed must not be relied on yet.
    folder = _make_folder(self.root, keep=1)
    self.save(2, folder=folder)
    former = self.root / "2" / "manifest.json"
    events, is_former_there, fsync = [], [], os.fsync

    def note_fsync(fd):
      fsync(fd)
      events.append(("fsync", os.readlink(f"/proc/self/fd/{fd}")))
      is_former_there.append(former.exists())

    def note(name, function):
      def call(*args, **kwargs):
        events.append((name, *map(str, args)))
        is_former_there.append(former.exists())
        return function(*args, **kwargs)

      return call

    with (
        mock.patch.object(os, "fsync", note_fsync),
        mock.patch.object(os, "replace", note("replace", os.replace)),
        mock.patch.object(os, "rename", note("rename", os.rename)),
    ):
      self.save(4, folder=folder)

    self.assertTrue(all(is_former_there))
    made, path = f"{self.root}/4.v1.tmp", self.root / "4"
    (written,) = (e for e in events if e[-1] == f"{made}/manifest.json")
    declared = events.index(written)
    synced = {e[1] for e in events[:declared] if e[0] == "fsync"}
    for file in path.rglob("*"):  # Files and directories of both parts.
      name = file.relative_to(path).as_posix()
      if name != "manifest.json":
        self.assertIn(f"{made}/{name}", synced)
    self.assertContainsSubset([made, written[1]], synced)  # And the manifest.
    self.assertEqual(
        [e for e in events[declared + 1 :] if str(self.root) in e[1]],
        [
            ("fsync", made),
            ("rename", made, f"{self.root}/4"),
            ("fsync", f"{self.root}"),
            ("rename", f"{self.root}/2", f"{self.root}/2.tmp"),
        ],
    )

  def test_unfinished_ones_are_ignored_and_removed(self):
    self.save(2)
    for name in ("4.v1.tmp", "6.v1.tmp"):
      shutil.copytree(self.root / "2", self.root / name)
    (self.root / "notes").mkdir()
    self.assertEqual(self.folder.steps(), (2,))
    self.folder.remove_unfinished("6.v1")
    self.assertCountEqual(os.listdir(self.root), ["2", "6.v1.tmp", "notes"])

  @parameterized.parameters((1, [9]), (2, [7, 9]), (9, [1, 3, 5, 7, 9]))
  def test_keep(self, keep, left):
    self.save(1)
    for step in (3, 5, 7):
      shutil.copytree(self.root / "1", self.root / f"{step}")
      first = manifest_lib.read_manifest(self.root / "1")
      manifest_lib.write_manifest(self.root / f"{step}", dataclasses.replace(first, step=step))
    self.save(9, folder=_make_folder(self.root, keep=keep))
    self.assertEqual(self.folder.steps(), tuple(left))
    self.assertCountEqual(os.listdir(self.root), map(str, left))

  def test_incomplete_ones_do_not_count_as_kept(self):
    self.save(2)
    for step in (1, 5, 8):
      shutil.copytree(self.root / "2", self.root / str(step))
    self.save(4, folder=_make_folder(self.root, keep=1))
    self.assertEqual(self.folder.steps(), (4,))
    self.assertCountEqual(os.listdir(self.root), ["4", "5", "8"])

  def test_nothing_is_removed_while_none_can_be_read(self):
    self.save(1)
    stale = OSError(errno.ESTALE, "Stale file handle")
    with mock.patch.object(pathlib.Path, "read_bytes", side_effect=stale):
      self.save(2, folder=_make_folder(self.root, keep=1))
    self.assertEqual(self.folder.steps(), (1, 2))

  def test_a_complete_one_stays(self):
    self.save(2)
    self.save(2, _layers(5))
    self.assertEqual(os.listdir(self.root), ["2"])
    self.assert_restores(2)

  def test_manifest(self):
    self.save(2)
    manifest = json.loads((self.root / "2" / "manifest.json").read_text())
    content = {"format": 3, "step": 2, "meta": _META}
    self.assertEqual(manifest | content, manifest)
    self.assertEqual(list(manifest["layers"]), list(_layers()))
    layer = manifest["layers"]["block_01.mlp"]
    self.assertEqual(layer["item"], "node3")
    self.assertEqual(layer["arrays"]["slots/0/nu/w"], "float32[6,4]")
    digests = digest.digest_layers(_layers(2)).state
    for name, entry in manifest["layers"].items():
      self.assertEqual(entry["sha256"], digests[name])

  def test_bad_directory(self):
    (self.root / "file").write_text("")
    with self.assertRaisesRegex(base.CheckpointError, "File exists"):
      _make_folder(self.root / "file", keep=1)
    with self.assertRaisesRegex(ValueError, "keep must be at least 1, got 0"):
      _make_folder(self.root, keep=0)

  def test_full_disk_keeps_the_previous_checkpoint(self):
    self.save(2)
    with self.assertNoLogs("absl"), limits.file_size(1 << 18):
      for name in ("v1", "v1.1"):
        with self.assertRaises((OSError, ValueError)) as caught:
          self.save(4, _layers_with_noise(), name=name)
        error = orbax_item.describe_error(caught.exception)
        self.assertEqual(error, "File too large")
        self.assertNotIn("node3", os.listdir(self.root / f"4.{name}.tmp"))
    self.assertEqual(self.folder.steps(), (2,))
    self.assert_restores(2)
    self.folder.remove_unfinished("4.v1.2")
    self.save(4, name="v1.2")  # There is room again.
    self.assert_restores(4)
    self.assertCountEqual(os.listdir(self.root), ["2", "4"])

  def test_no_room_is_told_before_the_disk_is_full(self):
    usage = shutil.disk_usage(self.root)._replace(free=100)
    with mock.patch.object(shutil, "disk_usage", return_value=usage):
      with self.assertRaisesRegex(OSError, "No space left.* MB needed"):
        self.save(2)
    self.assertEqual(os.listdir(self.root), [])
