"""Where the checkpoints of a run are: a folder that all members share, or a bucket.

Both have the same names, see `folder`. In a bucket a member writes its part to its own
folder first, as Orbax writes files:

  member                     bucket                           other members
    |-- 1 part ------------->|  4/v1.2-8c1f/node3/...
    |                        |<------------------- 2 part, 4/v1.2-8c1f/node0/...
    |                        |<- 3 are all files there?       (the writer)
    |                        |<- 4 4.v1.2-8c1f.json, unless it is there
    |                        |<- 5 removes 2.json, then its files

What is put late by a process that was removed has a name of its own, and no manifest.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent import futures
import contextlib
import datetime
import errno
import fcntl
import functools
import os
import pathlib
import shutil
import tempfile
import time

from absl import logging

from bamboo_jax import base
from bamboo_jax.checkpoint import contents, manifest as manifest_lib
from bamboo_jax.cluster import records

_READ = "read."  # Begins the names of folders that are read.
_NUM_THREADS = 8  # That copy files at once.
_MOST_TRIES, _RETRY_SECS = 10, 0.02  # Of removing a folder.
_TIMEOUT = datetime.timedelta(seconds=60)  # Of all tries of a request.


class LocalPlace:
  """Checkpoints in the folder `path`, by name; all calls block, and raise `OSError`.

  Those of `BucketPlace` are the same.

  Attributes:
    where: Its path or URL.
    least_kept: Number of complete checkpoints that are never removed.
  """

  least_kept = 1

  def __init__(self, path: pathlib.Path) -> None:
    self._path, self.where = path, str(path)

  def find(self) -> list[manifest_lib.CheckpointName]:
    """Returns the names of checkpoints, oldest first."""
    self._path.mkdir(exist_ok=True)  # Not its parent, whose mount may be away.
    return manifest_lib.find(self._path)

  def read(self, name: manifest_lib.CheckpointName) -> manifest_lib.Manifest:
    """Returns a manifest; see `manifest.read_manifest`."""
    return manifest_lib.read_manifest(self._path / name.file)

  def keep(self, item: str) -> dict[str, int]:
    """Returns the size of each file of an item just written, if any; all is on disk then."""
    sizes = {}
    for folder, _, names in os.walk(self._path / item):
      for name in sorted(names):
        path = pathlib.Path(folder, name)
        sizes[path.relative_to(self._path).as_posix()] = path.stat().st_size
        base.sync(path)
      base.sync(folder)
    for parent in pathlib.Path(item).parents:
      base.sync(self._path / parent)
    return sizes

  @contextlib.contextmanager
  def having(
      self, manifest: manifest_lib.Manifest, items: Collection[str]
  ) -> Iterator[pathlib.Path]:
    """Returns a folder that has these items, in a `with` block."""
    yield self._path

  def complete(
      self,
      name: manifest_lib.CheckpointName,
      manifest: manifest_lib.Manifest,
      check_fence: Callable[[], None],
  ) -> None:
    """Makes a checkpoint complete, if all of its files are there."""
    find_size = functools.partial(manifest_lib.find_size, self._path)
    if problem := manifest_lib.find_problem(manifest.files, find_size):
      raise OSError(errno.ENOENT, f"{problem}; all nodes need a folder that they share")
    made = self._path / f"{name.step}/{name.save}/manifest.json"
    base.write_atomically(made, manifest_lib.render(manifest))
    base.sync(made.parent)
    check_fence()
    made.rename(self._path / name.file)
    base.sync(self._path)

  def find_saves(self) -> set[str]:
    """Returns the folders STEP/SAVE and frozen/SAVE of saves, finished or not."""
    return {path.relative_to(self._path).as_posix() for path in self._path.glob("*/v*")}

  def remove(self, path: str) -> None:
    """Removes a file or folder; warns if it cannot."""
    for found in self._path.glob(path):
      try:
        _remove_tree(found) if found.is_dir() else found.unlink()
        for parent in found.relative_to(self._path).parents[:-1]:
          (self._path / parent).rmdir()
      except OSError as error:
        # Other processes may remove it too, or have items there.
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
          logging.warning("Cannot remove %s: %s.", found, contents.describe_error(error))


def _remove_tree(path: pathlib.Path) -> None:
  """Removes a folder, in which a save that has just failed may still make files for a moment."""
  for tries_left in reversed(range(_MOST_TRIES)):
    try:
      return shutil.rmtree(path)
    except OSError as error:
      if error.errno != errno.ENOTEMPTY or not tries_left:
        raise
      time.sleep(_RETRY_SECS)


class BucketPlace:
  """Checkpoints at a URL; items are in the folder `path` while they are written or read."""

  least_kept = 2  # One may be read while the next ones become complete.

  def __init__(self, path: pathlib.Path, url: str) -> None:
    self.where, self._path, self._local = url, path, LocalPlace(path)
    for left in path.glob(f"{_READ}*"):  # Of a process that was killed.
      with contextlib.suppress(OSError), _held(left):
        shutil.rmtree(left)
    self._bucket = records.Bucket(url, timeout=_TIMEOUT)
    self._manifests: dict[manifest_lib.CheckpointName, manifest_lib.Manifest] = {}

  def find(self) -> list[manifest_lib.CheckpointName]:
    return find_names(self._bucket.sizes(""))

  def read(self, name: manifest_lib.CheckpointName) -> manifest_lib.Manifest:
    if name not in self._manifests:  # It never changes.
      content = self._bucket.read(name.file)
      self._manifests[name] = manifest_lib.parse(f"{self.where}/{name.file}", content)
    return self._manifests[name]

  def keep(self, item: str) -> dict[str, int]:
    files = self._local.keep(item)
    self._copy(files, lambda file: self._bucket.upload(file, self._path / file))
    self._local.remove(item)
    return files

  @contextlib.contextmanager
  def having(
      self, manifest: manifest_lib.Manifest, items: Collection[str]
  ) -> Iterator[pathlib.Path]:
    # A folder for each reader: other processes of this machine may read the same.
    with tempfile.TemporaryDirectory(dir=self._path, prefix=_READ) as folder, _held(folder):
      root = pathlib.Path(folder)

      def fetch(file: str) -> None:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        self._bucket.download(file, sizes[file], root / file)

      wanted = find_files(manifest.files, items)
      sizes = {f: n for item in items for f, n in self._bucket.sizes(item).items()}
      if problem := manifest_lib.find_problem(wanted, sizes.get):
        raise base.DamagedCheckpointError(
            f"Cannot use a checkpoint of step {manifest.step} in {self.where}: {problem}."
        )
      self._copy(wanted, fetch)
      yield root

  def complete(
      self,
      name: manifest_lib.CheckpointName,
      manifest: manifest_lib.Manifest,
      check_fence: Callable[[], None],
  ) -> None:
    if problem := manifest_lib.find_problem(manifest.files, self._bucket.sizes("").get):
      raise OSError(errno.ENOENT, problem)
    check_fence()
    self._bucket.create(name.file, manifest_lib.render(manifest))

  def find_saves(self) -> set[str]:
    return find_saves(self._bucket.sizes("")) | self._local.find_saves()

  def remove(self, path: str) -> None:
    self._local.remove(path)  # What a killed process has left.
    try:
      is_manifest = path.endswith(".json")
      self._copy([path] if is_manifest else self._bucket.sizes(path), self._bucket.delete)
    except OSError as error:
      logging.warning("Cannot remove %s: %s.", path, error)

  def _copy(self, files: Iterable[str], copy: Callable[[str], None]) -> None:
    with futures.ThreadPoolExecutor(_NUM_THREADS) as threads:
      for _ in threads.map(copy, files):
        pass  # Raises the error of the first that failed.


@contextlib.contextmanager
def _held(folder: str | os.PathLike[str]) -> Iterator[None]:
  """Holds a folder that no other process holds, or raises `OSError`."""
  fd = os.open(folder, os.O_RDONLY)
  try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield
  finally:
    os.close(fd)


CheckpointPlace = LocalPlace | BucketPlace


def remove_before(
    place: CheckpointPlace, before: manifest_lib.CheckpointName, used: Collection[str] = ()
) -> None:
  """Removes the saves before another one, but for those that are `used`."""
  for path in place.find_saves() - {*used}:
    left = manifest_lib.CheckpointName.parse(f"{before.step}.{path.rpartition('/')[2]}")
    if left and left < before:
      place.remove(path)


def open_place(path: pathlib.Path, url: str = "") -> CheckpointPlace:
  """Returns the place of the checkpoints at `url`, if there is one, or in a folder."""
  return BucketPlace(path, url) if url else LocalPlace(path)


def find_names(keys: Iterable[str]) -> list[manifest_lib.CheckpointName]:
  """Returns the checkpoints whose manifests are among keys, oldest first."""
  stems = (key.removesuffix(".json") for key in keys if key.endswith(".json"))
  return sorted(filter(None, map(manifest_lib.CheckpointName.parse, stems)))


def find_files(files: Mapping[str, int], items: Collection[str]) -> dict[str, int]:
  """Returns the files of some items, with their sizes."""
  return {f: n for f, n in files.items() if any(f.startswith(f"{item}/") for item in items)}


def find_saves(keys: Iterable[str]) -> set[str]:
  """Returns the folders of saves that have files among keys."""
  return {"/".join(parts[:2]) for key in keys if len(parts := key.split("/")) > 2}
