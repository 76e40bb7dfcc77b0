"""Checkpoints in buckets: complete, or not at all, whatever the bucket does."""

from concurrent import futures
import datetime
import functools
import os
import pathlib
import tempfile
from unittest import mock
import uuid

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    arrays as layer_arrays,
    folder as folder_lib,
    manifest as manifest_lib,
    parts,
    places,
)
from bamboo_jax.cluster import records
from bamboo_jax.runtime.stage import spec as spec_lib
from tests import buckets, folders

_META = {"seed": 7}
_MOMENT = datetime.timedelta(milliseconds=1)
_KEYS = (
    "2.v1.1-aa.json",
    "10.v1.2-aa.json",
    "4.v2.1-bb.json",
    "2/v1.1-aa/node0/d/1",
    "2/v1.1-aa/node1/d/1",
    "frozen/v1.1-aa/node0/d/1",
    "6/v1.3-aa/node0/d/1",
    "other.json",
    "4.v2.1-bb.txt",
)


_SAVES = {"2/v1.1-aa", "frozen/v1.1-aa", "6/v1.3-aa"}


def _layers(step):
  params = lambda number: {"w": np.full((3, 2), 10 * step + number, np.float32)}
  return {n: spec_lib.LayerState(params(i), (), {}) for i, n in enumerate(("body", "head"))}


class PureTest(parameterized.TestCase):

  def test_names_saves_and_files(self):
    names = [str(name) for name in places.find_names(_KEYS)]
    self.assertEqual(names, ["2.v1.1-aa", "4.v2.1-bb", "10.v1.2-aa"])  # By save, not by step.
    self.assertEqual(places.find_saves(_KEYS), _SAVES)
    files = {"2/a/node1/d": 1, "2/a/node12/d": 2}
    self.assertEqual(places.find_files(files, ["2/a/node1"]), {"2/a/node1/d": 1})

  @parameterized.parameters(
      (((0, 0.0),), {}),
      (
          ((1 << 20, 2.0), (3 << 20, 1.0)),  # At once.
          {"saved": 4, "mib": 4.0, "secs": 2.0, "mib_per_sec": 2.0},
      ),
  )
  def test_uploads(self, uploads, told):
    self.assertEqual(parts.describe_uploads(base.StepId(4), uploads), told)


class BucketPlaceTest(folders.FolderCase):

  def open(self, scheme="s3"):
    """Starts the server of a bucket; returns the folder of a member that uses it."""
    self.front, environ = buckets.OPEN[scheme](uuid.uuid4().hex)
    self.addCleanup(self.front.close)
    self.enterContext(mock.patch.dict(os.environ, environ))
    self.url = f"{scheme}://{self.front.bucket}/run/checkpoints"
    self.bucket = records.Bucket(self.url)
    self.is_fenced = False
    return self.member()

  def member(self):
    """Returns the folder of another machine."""
    root = pathlib.Path(tempfile.mkdtemp(dir=self.folder), "checkpoints")
    return folder_lib.CheckpointFolder(root, keep=1, check_fence=self.check_fence, url=self.url)

  def check_fence(self):
    if self.is_fenced:
      raise base.FencedError("The workdir is that of another run now.")

  def name(self, member, step):
    member.steps()
    member.attempt += 1
    return manifest_lib.CheckpointName(member.attempt, 1, step, "aa")

  def write(self, name, *members):
    """Writes a part by each member: one of a layer, the other of the rest."""
    arrays = layer_arrays.copy_to_host(_layers(name.step))
    return [
        member.write_part(name, f"node{number}", {layer: arrays[layer]})
        for number, (member, layer) in enumerate(zip(members, arrays, strict=True))
    ]

  def save(self, first, second, step):
    name = self.name(first, step)
    first.remove_unfinished(name)
    whole = manifest_lib.join(self.write(name, first, second), order=["body", "head"], meta=_META)
    first.finish(name, whole)
    return name

  def keys(self):
    return sorted(self.bucket.sizes(""))

  def assert_has(self, *steps):
    """There are the checkpoints of these steps, whatever member looks, and nothing else."""
    member = self.member()
    self.assertEqual(member.steps(), steps)
    names = places.find_names(self.keys())
    self.assertCountEqual([name.step for name in names], steps)
    self.assertEqual(places.find_saves(self.keys()), {f"{n.step}/{n.save}" for n in names})

  def assert_restores(self, step, names=("body", "head")):
    member = self.member()
    found, meta = member.read(step, _layers(0), names)
    self.assertEqual(meta, _META)
    self.assertEqual([*found], [*names])
    for name in names:
      np.testing.assert_array_equal(found[name].params["w"], _layers(step)[name].params["w"])
    self.assertEmpty(os.listdir(member.path))  # What it has fetched.

  @parameterized.parameters(*buckets.OPEN)
  def test_another_machine_goes_on(self, scheme):
    first = self.open(scheme)
    second = self.member()
    self.assertEqual(first.steps(), ())
    self.save(first, second, 2)
    self.assert_has(2)
    self.assert_restores(2)
    for member in (first, second):
      self.assertEmpty(os.listdir(member.path))  # The bucket has it.

  def test_it_reads_the_items_that_have_its_layers(self):
    first = self.open()
    name = self.save(first, self.member(), 2)
    for key in self.keys():
      if "/node0/" in key:
        self.bucket.delete(key)
    self.assert_restores(2, ("head",))
    member = self.member()
    with self.assertRaisesRegex(base.DamagedCheckpointError, f"{name.save}/node0/.* is missing"):
      member.read(2, _layers(0), ["body"])
    self.assertEqual(member.steps(), ())  # It is passed over.

  def test_a_large_file(self):
    folder = self.open().path
    data = np.random.default_rng(0).bytes(2 * records._PIECE_BYTES + 7)
    (folder / "sent").write_bytes(data)
    self.bucket.upload("2/large", folder / "sent")
    self.assertEqual(self.bucket.sizes("2"), {"2/large": len(data)})
    self.bucket.download("2/large", len(data), folder / "found")
    self.assertTrue((folder / "found").read_bytes() == data)

  def test_two_newer_ones_are_there_before_one_is_removed(self):
    first = self.open()
    second = self.member()
    # What former processes were writing, on machines of the writer and of another member.
    killed = [member.path / "2/v1.0-ff/node0" for member in (first, second)]
    for path in killed:
      path.mkdir(parents=True)
    for step, kept in ((2, (2,)), (4, (2, 4)), (6, (4, 6)), (8, (6, 8))):
      name = self.save(first, second, step)
      self.assert_has(*kept)
    self.assertEqual(name.attempt, 4)
    self.assertFalse(any(path.exists() for path in killed))
    self.assert_restores(6)

  def test_a_manifest_is_never_before_its_files(self):
    first = self.open()
    name = self.name(first, 2)
    written = self.write(name, first, self.member())
    whole = manifest_lib.join(written, order=["body", "head"], meta=_META)
    key = next(key for key in self.keys() if "/node1/" in key)
    self.bucket.delete(key)
    with self.assertRaisesRegex(OSError, f"{key} is missing"):
      first.finish(name, whole)
    self.assertEmpty(places.find_names(self.keys()))

  def test_who_was_removed_completes_and_removes_nothing(self):
    first = self.open()
    second = self.member()
    for step in (2, 4):
      self.save(first, second, step)
    self.is_fenced = True
    with self.assertRaises(base.FencedError):
      self.save(first, second, 6)
    self.assertEqual(self.member().steps(), (2, 4))
    self.assert_restores(2)
    self.is_fenced = False
    self.save(first, second, 8)  # It also removes what that has left.
    self.assert_has(4, 8)

  def test_an_upload_that_fails_does_not_count(self):
    first = self.open()
    second = self.member()
    self.save(first, second, 2)
    timeout = datetime.timedelta(milliseconds=300)
    with mock.patch.object(places, "_TIMEOUT", timeout), self.front.failing("503"):
      broken = self.member()
      with self.assertRaisesRegex(OSError, f"^{self.url}: no answer: .*503"):
        self.write(self.name(broken, 4), broken, second)
    self.assertEmpty(os.listdir(broken.path))  # It made room.
    self.assert_has(2)
    self.save(first, second, 6)
    self.assert_has(2, 6)

  def test_readers_of_one_machine_do_not_meet(self):
    first = self.open()
    self.save(first, self.member(), 2)
    read = functools.partial(self.member().read, 2, _layers(0), ["body"])
    with futures.ThreadPoolExecutor(4) as pool:
      for reading in [pool.submit(read) for _ in range(4)]:
        reading.result()

  def test_what_a_killed_reader_has_left_is_removed(self):
    first = self.open()
    self.save(first, self.member(), 2)
    (first.path / "read.killed/2").mkdir(parents=True)
    manifest = first.newest()
    with first.place.having(manifest, manifest.find_items(["body"])) as root:
      places.open_place(first.path, self.url)  # Another process of this machine.
      self.assertEqual(os.listdir(first.path), [root.name])
      self.assertNotEmpty(os.listdir(root))
