"""Checkpoints on disk: to the bit, or not at all."""

import errno
import json
import os
import pathlib
import random
import shutil
from unittest import mock

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    arrays as layer_arrays,
    contents,
    folder as folder_lib,
    manifest as manifest_lib,
)
from bamboo_jax.runtime.stage import spec as spec_lib
from tests import folders, limits

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


def _make_folder(path, *, keep=2):
  return folder_lib.CheckpointFolder(path, keep=keep, check_fence=lambda: None)


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


def _cut(path):
  os.truncate(path, path.stat().st_size // 2)


def _flip(path, *, at=None, by=1):
  data = bytearray(path.read_bytes())
  data[len(data) // 2 if at is None else at] ^= by
  path.write_bytes(data)


def _other(file):
  """Returns the manifest of the checkpoint before."""
  first, _ = sorted(file.parent.glob("*.json"))
  return first.read_bytes()


def _make_former(file, form, frozen=None):
  """Makes a checkpoint one of an earlier format; `frozen` is what it says of each layer."""
  folder = file.parent / file.name.partition(".")[0]
  manifest = json.loads(file.read_text())
  (save,) = folder.iterdir()
  for item in save.iterdir():
    item.rename(folder / item.name)
  save.rmdir()
  del manifest["sha256"], manifest["frozen"]
  manifest["format"] = form
  prefix = f"{folder.name}/{save.name}/"
  manifest["files"] = {k.removeprefix(prefix): n for k, n in manifest["files"].items()}
  for entry in manifest["layers"].values():
    if form == 3:
      entry["frozen"] = frozen
    entry["item"] = entry["item"].removeprefix(prefix)
  if form > 1:
    manifest["sha256"] = manifest_lib._sha256(manifest)
  (folder / "manifest.json").write_text(json.dumps(manifest))
  file.unlink()


def _invert(path):
  """Inverts all data; of equally large files some are not needed."""
  for file in path.rglob("d/*"):
    file.write_bytes(bytes(0xFF ^ byte for byte in file.read_bytes()))


class FolderTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.root = self.folder.resolve() / "checkpoints"
    self.folder = _make_folder(self.root)

  def name(self, step):
    """Returns the next name of a save."""
    self.folder.steps()
    return folder_lib.CheckpointName(self.folder.attempt + 1, 1, step, "a")

  def save(self, step, layers=None, *, folder=None, name=None):
    """Saves a state, whose numbers depend on the step, in two parts; returns the manifest."""
    name = name or self.name(step)
    folder, layers = folder or self.folder, layers or _layers(step)
    arrays = layer_arrays.copy_to_host(layers)
    split = {"node0": [*arrays][:1], "node3": [*arrays][1:]}
    parts = [
        folder.write_part(name, item, {k: arrays[k] for k in names})
        for item, names in split.items()
    ]
    folder.finish(name, manifest_lib.join(parts, order=list(layers), meta=_META))
    return self.root / name.file

  def path(self, step, item=""):
    """Returns the folder of the only checkpoint of a step."""
    (path,) = (self.root / f"{step}").glob("*")
    return path / item

  def listed(self):
    return sorted(os.listdir(self.root))

  def read(self, file, like=None, names=None):
    like = like or _layers()
    manifest = manifest_lib.read_manifest(file)
    return contents.read(file, manifest, like, [*like] if names is None else names)

  def assert_restores(self, step):
    layers, meta = self.folder.read(step, _layers(), list(_layers()))
    self.assertEqual(_bits(layers), _bits(_layers(step)))
    self.assertEqual(meta, _META)

  def test_round_trip_to_the_bit(self):
    layers = {name: _layer(i, optimizer=name) for i, name in enumerate(reversed(_OPTIMIZERS))}
    devices = dict(zip(layers, jax.devices(), strict=False))
    layers = {name: jax.device_put(layer, devices[name]) for name, layer in layers.items()}
    layers["bare"] = spec_lib.LayerState({}, optax.sgd(1e-2).init({}), {})
    file = self.save(7, layers)
    shapes = {k: jax.eval_shape(lambda v=v: v) for k, v in layers.items()}
    restored, _ = self.read(file, shapes)
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
    self.assertEqual(_bits(copies), _bits(layer_arrays.copy_to_host(_layers(2))))

  @parameterized.parameters(
      (["block_02.mlp", "block_00.mlp"], None), (["block_00.mlp"], "node3"), ([], "node0")
  )
  def test_subset(self, names, damaged):
    file = self.save(2)
    if damaged is not None:  # Which is not even read.
      _flip(_biggest_file(self.path(2, damaged)))
    restored, _ = self.read(file, names=names)
    self.assertEqual(_bits(restored), _bits({n: _layers(2)[n] for n in names}))
    self.assertEqual(list(restored), names)

  @parameterized.named_parameters(
      ("missing", {"head": {}}, "has no layer 'head', .* block_00"),
      ("extra", {"block_02.mlp": None}, "has a layer 'block_02.mlp', which"),
      *(
          (f"{name}_{value}", {"block_01.mlp": {name: value}}, message)
          for name, value, message in (
              (
                  *("width", 5),
                  r"in layer 'block_01.mlp', params/bias is bfloat16\[4\] there and "
                  r"bfloat16\[5\] in the model",
              ),
              ("dtype", "bfloat16", r"params/w is float32\[6,4\] there and bfloat16\[6,4\] in"),
              ("optimizer", "momentum", r"slots/0/trace/bias is absent there and bfloat16\[4\] in"),
              ("stats", False, r"stats/count is int32\[\] there and absent in"),
          )
      ),
  )
  def test_another_model(self, changes, message):
    file = self.save(2)
    layers = _layers()
    for name, options in changes.items():
      layers[name] = options if options is None else _layer(**options)
    layers = {k: v for k, v in layers.items() if v is not None}
    with self.assertRaisesRegex(base.CheckpointError, message):
      self.read(file, layers, ["block_00.mlp"])  # Whatever is asked for.

  @parameterized.named_parameters(
      ("no_manifest", "json", os.unlink, None),
      ("cut_manifest", "json", _cut, "it is damaged"),
      ("changed_manifest", "json", _flip, "it is damaged"),
      ("empty_manifest", "json", lambda p: p.write_text("{}"), "it is damaged"),
      ("another_step", "json", lambda p: p.write_bytes(_other(p)), "it is of step 2"),
      ("cut_data", "data", _cut, "it should have"),
      ("no_data", "data", os.unlink, "is missing"),
      ("no_part", "node3", shutil.rmtree, "is missing"),
      ("nothing", "", shutil.rmtree, "is missing"),
  )
  def test_incomplete_checkpoint_is_passed_over(self, name, damage, message):
    self.save(2)
    file = self.save(4)
    damage({"json": file, "data": _biggest_file(self.path(4))}.get(name, self.path(4, name)))
    left = folders.read_all(self.root)
    with self.assertLogs("absl", "WARNING") if message else self.assertNoLogs("absl") as logs:
      self.assertEqual(self.folder.steps(), (2,))
    if message:
      self.assertRegex(logs.output[0], message)
      with self.assertRaisesRegex(base.DamagedCheckpointError, message):
        self.read(file)
    self.assertEqual(folders.read_all(self.root), left)
    self.save(4)
    self.assert_restores(4)

  def test_any_changed_byte_is_found_or_does_no_harm(self):
    self.save(2)
    file = self.save(4)
    files = [file, *(p for p in self.path(4).rglob("*") if p.is_file())]
    self.assertGreater(len(files), 5)
    num_passed_over = 0
    rng = random.Random(0)
    for path in files:
      content = path.read_bytes()
      for _ in range(5 if content else 0):
        at = rng.randrange(len(content))
        _flip(path, at=at, by=rng.randrange(1, 256))
        with self.subTest(f"{path.relative_to(self.root)} {at}"):
          num_passed_over += self.resume(_make_folder(self.root)) == 2
        path.write_bytes(content)
    self.assertGreater(num_passed_over, 10)
    self.assertEqual(self.folder.steps(), (2, 4))

  def resume(self, folder):
    """Restores as a run does, what it takes for good is as it was saved; returns the step."""
    while True:
      step = folder.steps()[-1]
      try:
        layers, meta = folder.read(step, _layers(), list(_layers()))
      except base.DamagedCheckpointError:
        continue
      self.assertEqual(_bits(layers), _bits(_layers(step)))
      self.assertEqual(meta, _META)
      return step

  def test_a_damaged_one_is_never_touched_and_counts_no_more(self):
    """Also where the run saves earlier steps, and the same one, again."""
    self.save(2)
    self.save(6)
    _invert(self.path(6))
    damaged = folders.read_all(self.path(6))
    with self.assertLogs("absl", "WARNING") as logs:
      self.assertEqual(self.resume(self.folder), 2)
    self.assertIn("is left as it is; an older one is used", str(logs.output))
    # Another process does not know; the numbers of saves tell.
    folder = _make_folder(self.root)
    self.assertEqual(folder.steps(), (2, 6))
    self.save(4)
    self.assertEqual(folder.steps(), (2, 4))
    self.assertEqual(folders.read_all(self.path(6)), damaged)
    self.save(6)
    self.assertEqual(folder.steps(), (4, 6))
    self.assertEqual(self.resume(_make_folder(self.root)), 6)
    self.assertEqual(self.listed(), ["4", "4.v1.3-a.json", "6", "6.v1.4-a.json"])

  @parameterized.parameters(errno.EIO, errno.ESTALE, errno.EACCES)
  def test_what_cannot_be_read_now_is_not_damaged(self, code):
    self.save(2)
    self.save(4)
    error = OSError(code, os.strerror(code))
    in_words = ValueError(f"NOT_FOUND: [os_error_code='{code}']")
    for *target, raised in (
        (pathlib.Path, "read_bytes", error),
        (contents, "read_item", error),
        (contents, "read_item", in_words),
        (contents, "read_item", MemoryError()),
    ):
      with mock.patch.object(*target, side_effect=raised):
        self.refuses_but_not_as_damaged(4, "")
    self.assertEqual(self.folder.steps(), (2, 4))

  def refuses_but_not_as_damaged(self, step, message):
    with self.assertRaisesRegex(base.CheckpointError, message) as caught:
      self.folder.read(step, _layers(), [*_layers()])
    self.assertNotIsInstance(caught.exception, base.DamagedCheckpointError)

  def test_what_another_version_has_written_is_not_damaged(self):
    self.save(2)
    file = self.save(4)
    with mock.patch.object(manifest_lib, "_FORMAT", 9):
      file.write_bytes(manifest_lib.render(manifest_lib.read_manifest(file)))
    self.refuses_but_not_as_damaged(4, "another version")
    self.assertEqual(self.folder.steps(), (2,))

  @parameterized.parameters(1, 2, 3)
  def test_former_formats(self, form):
    """A folder STEP with the manifest in it; the first had no hash."""
    _make_former(self.save(2), form)
    self.assertEqual(self.listed(), ["2"])
    self.assertEqual(self.folder.steps(), (2,))
    self.assert_restores(2)
    file = self.root / "2" / "manifest.json"
    self.assertEqual(manifest_lib.find_newest(self.root / "2"), file)
    self.save(2)
    self.assert_restores(2)
    self.assertFalse(file.exists())

  def test_frozen_weights_of_a_former_format_are_elsewhere(self):
    _make_former(self.save(2), 3, frozen={"sha256": "ab", "arrays": {}})
    self.refuses_but_not_as_damaged(2, "frozen weights are in another folder")

  def test_order_on_disk(self):
    # What would be lost if the power failed must not be relied on yet.
    former, events = self.save(2), []

    def note(name):
      function = getattr(os, name)

      def call(*args):
        self.assertTrue(former.exists())
        paths = [os.readlink(f"/proc/self/fd/{a}") if name == "fsync" else f"{a}" for a in args]
        events.append((name, *paths))
        return function(*args)

      return mock.patch.object(os, name, call)

    with note("fsync"), note("replace"), note("rename"):
      file = self.save(4, folder=_make_folder(self.root, keep=1))
    self.assertFalse(former.exists())
    made = f"{self.root}/4/v1.2-a"
    (written,) = (e for e in events if e[-1] == f"{made}/manifest.json")
    declared = events.index(written)
    synced = {e[1] for e in events[:declared] if e[0] == "fsync"}
    for name in manifest_lib.read_manifest(file).files:
      self.assertIn(f"{self.root}/{name}", synced)
    self.assertContainsSubset([f"{self.root}", f"{self.root}/4", made, written[1]], synced)
    self.assertEqual(
        events[declared + 1 :],
        [
            ("fsync", made),
            ("rename", f"{made}/manifest.json", f"{file}"),
            ("fsync", f"{self.root}"),
        ],
    )

  def test_unfinished_ones_are_ignored_and_removed(self):
    self.save(2)
    arrays = layer_arrays.copy_to_host(_layers())
    for attempt in (2, 3, 4):
      name = folder_lib.CheckpointName(attempt, 1, 6, "b")
      self.folder.write_part(name, "node0", arrays)
      self.folder.write_part(name, "node0", arrays, is_frozen=True)
    (self.root / "notes").mkdir()
    self.assertEqual(self.folder.steps(), (2,))
    before = folders.read_all(self.root)
    with mock.patch.object(manifest_lib, "find_problem", return_value="a file is missing"):
      self.folder.remove_unfinished(name)  # Maybe this process alone does not see it yet.
    self.assertEqual(folders.read_all(self.root), before)
    self.folder.remove_unfinished(name)
    self.assertEqual(self.listed(), ["2", "2.v1.1-a.json", "6", "frozen", "notes"])
    for folder in ("6", "frozen"):
      self.assertEqual(os.listdir(self.root / folder), ["v1.4-b"])

  @parameterized.parameters((1, [9]), (2, [7, 9]))
  def test_keep(self, keep, left):
    folder = _make_folder(self.root, keep=keep)
    for step in (1, 3, 5, 7, 9):
      self.save(step, folder=folder)
    self.assertEqual(folder.steps(), tuple(left))
    self.assertLen(self.listed(), 2 * len(left))

  def test_incomplete_ones_do_not_count_as_kept(self):
    for step in (2, 4, 6):
      self.save(step, folder=_make_folder(self.root, keep=9))
    for step in (4, 6):
      os.unlink(_biggest_file(self.path(step)))
    self.save(8)
    self.assertEqual(self.folder.steps(), (2, 8))

  def test_nothing_is_removed_while_none_can_be_read(self):
    self.save(1)
    stale = OSError(errno.ESTALE, "Stale file handle")
    with mock.patch.object(pathlib.Path, "read_bytes", side_effect=stale):
      self.save(2, folder=_make_folder(self.root, keep=1))
    self.assertEqual(self.folder.steps(), (1, 2))

  def test_bad_directory(self):
    (self.root / "file").write_text("")
    with self.assertRaisesRegex(base.CheckpointError, "File exists"):
      _make_folder(self.root / "file", keep=1)

  def test_a_save_that_has_just_failed_may_still_make_files(self):
    left, remove = self.root / "4" / "v1.2-a" / "node3.tmp", shutil.rmtree
    left.mkdir(parents=True)
    busy = [OSError(errno.ENOTEMPTY, "Directory not empty")] * 3

    def rmtree(path):
      if busy:
        raise busy.pop()
      remove(path)

    with mock.patch.object(shutil, "rmtree", rmtree):
      self.folder.place.remove("4/v1.2-a/node3.*")
    self.assertEqual(os.listdir(self.root), [])

  def test_full_disk_keeps_the_previous_checkpoint(self):
    self.save(2)
    with self.assertNoLogs("absl"), limits.file_size(1 << 18):
      for attempt in (2, 3):
        with self.assertRaises((OSError, ValueError)) as caught:
          name = folder_lib.CheckpointName(attempt, 1, 4, "a")
          self.save(4, _layers_with_noise(), name=name)
        error = contents.describe_error(caught.exception)
        self.assertEqual(error, "File too large")
        self.assertEmpty([*self.root.glob("4/*/node3*")])  # It makes room.
    self.assertEqual(self.folder.steps(), (2,))
    self.assert_restores(2)
    self.save(4, name=folder_lib.CheckpointName(4, 1, 4, "a"))  # There is room again.
    self.assertEqual(os.listdir(self.root / "4"), ["v1.4-a"])
    self.assert_restores(4)
