"""The folder of the checkpoints of a run.

The name of a complete checkpoint is its step. A checkpoint being written or
removed ends in `.tmp`; it is never restored, and removed later. A damaged one
ends in `.damaged`, `.damaged.2` and so on; it is kept.

Other processes may complete, remove and rename checkpoints at any time, even
one that was suspended between any two system calls. So each change of a name is
a rename that fails if the target exists and is not empty, and a directory is
renamed before it is deleted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import errno
import itertools
import os
import pathlib
import re
import shutil
from typing import NamedTuple

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    directory,
    frozen as frozen_lib,
    manifest as manifest_lib,
    orbax_item,
)
from bamboo_jax.runtime.stage import spec as spec_lib

_UNFINISHED = ".tmp"
_DAMAGED = ".damaged"
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)  # A rename's target exists.


class _Place(NamedTuple):
  """Path and inode of a checkpoint, and its name if it is damaged."""

  path: pathlib.Path
  inode: int | None
  aside: pathlib.Path


class CheckpointFolder:
  """The folder `path`, made if needed; keeps `keep` complete checkpoints.

  `check_fence` raises `base.FencedError` if this process must not write any
  more. Raises `base.CheckpointError` if the folder cannot be used.
  """

  def __init__(
      self, path: str | os.PathLike[str], *, keep: int, check_fence: Callable[[], None]
  ) -> None:
    if keep < 1:
      raise ValueError(f"keep must be at least 1, got {keep}.")
    self.path = pathlib.Path(path).absolute()
    self._keep = keep
    self._check_fence = check_fence
    try:
      self.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise base.CheckpointError(
          f"Cannot keep checkpoints in {self.path}: " f"{orbax_item.describe_error(error)}."
      ) from error

  def steps(self) -> tuple[base.StepId, ...]:
    """Returns the steps with a complete checkpoint, oldest first.

    Compares sizes of files without reading contents. Warns of newer incomplete
    ones.
    """
    steps = self._all_steps()
    for step in reversed(steps):
      problem = self._problem(step)
      if problem is None:
        break
      logging.warning("%s", problem)
    return self._complete(steps)

  def has(self, step: base.StepId) -> bool:
    """Returns whether `step` has a complete checkpoint that can be read."""
    return self._problem(step) is None

  def read(
      self,
      step: base.StepId,
      like: Mapping[str, spec_lib.LayerState],
      names: Sequence[str],
      weights: frozen_lib.InitialWeights | None = None,
  ) -> directory.CheckpointContents:
    """Reads a checkpoint; see `directory.read`.

    A damaged one is renamed before `base.DamagedCheckpointError` is raised.
    """
    place = self._look(step)
    try:
      return directory.read(self.path / str(step), like, names, weights)
    except base.DamagedCheckpointError as error:
      self._set_aside(place, error)
      raise

  def set_aside_damaged(self, after: base.StepId) -> None:
    """Renames the incomplete checkpoints later than `after`, with a warning.

    Contents are not read. Temporarily unreadable ones stay.
    """
    for step in self._all_steps():
      if step > after:
        self._look_through(step)

  def write_part(
      self,
      name: str,
      item: str,
      layers: Mapping[str, Mapping[str, np.ndarray]],
      *,
      step: base.StepId,
  ) -> manifest_lib.Manifest:
    """Writes layers to the directory `item` of the unfinished `name`; blocks.

    Each attempt to save has its own `name`, since writes of a failed one may
    still be in progress. Replaces an existing `item`. For the other arguments,
    the result and exceptions see `directory.write_part`.
    """
    path = self._unfinished(name)
    try:
      # Removed meanwhile? Not its parent, whose mount may be away.
      self.path.mkdir(exist_ok=True)
      self._check_space(layers)
      path.mkdir(exist_ok=True)
      _remove_item(path, item)  # Of an earlier attempt.
      return directory.write_part(path, item, layers, step=step)
    except (OSError, ValueError):
      _remove_item(path, item)  # Makes room.
      with contextlib.suppress(OSError):  # Others may have items there.
        path.rmdir()
      raise

  def finish(self, name: str, manifest: manifest_lib.Manifest, *, keeps: bool = False) -> None:
    """Makes the checkpoint written under `name` complete; removes old ones.

    With `keeps` it removes none. An existing complete one of that step stays, a
    damaged one is renamed. Raises `OSError`, or `base.FencedError`.
    """
    unfinished = self._unfinished(name)
    try:
      if problem := manifest_lib.find_problem(unfinished, manifest.files):
        text = f"{problem}; all nodes need a folder that they share"
        raise OSError(errno.ENOENT, text)
      manifest_lib.write_manifest(unfinished, manifest)
      self._check_fence()
      while not self._rename(unfinished, self.path / str(manifest.step)):
        problem = self._look_through(manifest.step)
        if problem is None:
          break
        if not isinstance(problem, base.DamagedCheckpointError):
          raise OSError(errno.EIO, str(problem).rstrip("."))
      manifest_lib.sync(self.path)
    finally:
      shutil.rmtree(unfinished, ignore_errors=True)  # Unless it was renamed.
    if not keeps:
      self._remove_old()

  def remove_unfinished(self, but: str) -> None:
    """Removes unfinished checkpoints except `but`; warns if it cannot."""
    for path in self.path.glob(f"[0-9]*{_UNFINISHED}"):
      if path != self._unfinished(but):
        _remove(path)

  def _unfinished(self, name: str) -> pathlib.Path:
    return self.path / f"{name}{_UNFINISHED}"

  def _problem(self, step: base.StepId) -> base.CheckpointError | None:
    try:
      manifest_lib.read_manifest(self.path / str(step))
    except base.CheckpointError as error:
      return error
    return None

  def _look_through(self, step: base.StepId) -> base.CheckpointError | None:
    """Returns the result of `_problem`; renames a damaged checkpoint."""
    place = self._look(step)
    problem = self._problem(step)
    if isinstance(problem, base.DamagedCheckpointError):
      self._set_aside(place, problem)
    return problem

  #  this process          another
  #  look: inode 7, name
  #  read: damaged
  #                        rename STEP to STEP.damaged; another STEP, inode 8
  #  look: inode 8: stop
  #  rename                (or here: then STEP.damaged exists, and this fails)

  def _look(self, step: base.StepId) -> _Place:
    """Returns inode and future name of a checkpoint; call before reading it.

    Names of damaged checkpoints are never reused. So if another process renames
    this one and completes another, `_set_aside` fails.
    """
    path = self.path / str(step)
    endings = (f".{n}" if n > 1 else "" for n in itertools.count(1))
    sides = (self.path / f"{step}{_DAMAGED}{ending}" for ending in endings)
    aside = next(side for side in sides if not side.exists())
    return _Place(path, _inode(path), aside)

  def _set_aside(self, place: _Place, problem: base.DamagedCheckpointError) -> None:
    """Renames a damaged checkpoint, unless another process has; warns."""
    if place.inode is None or _inode(place.path) != place.inode:
      return
    with contextlib.suppress(FileNotFoundError):
      if self._rename(place.path, place.aside):
        logging.warning("%s It is kept as %s; an older one is used.", problem, place.aside)

  def _rename(self, path: pathlib.Path, target: pathlib.Path) -> bool:
    """Renames a directory; returns False if the target exists, not empty."""
    try:
      os.rename(path, target)
    except OSError as error:
      if error.errno not in _TAKEN:
        raise
      return False
    return True

  def _check_space(self, layers: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Raises `OSError` if the disk has no room for the arrays.

    A write would fail too, but only after it has filled the disk that other
    processes use.
    """
    needed = sum(a.nbytes for arrays in layers.values() for a in arrays.values())
    free = shutil.disk_usage(self.path).free
    if free < needed:
      raise OSError(
          errno.ENOSPC,
          f"{os.strerror(errno.ENOSPC)}: {needed / 1e6:,.1f} MB needed, "
          f"{free / 1e6:,.1f} MB free",
      )

  def _all_steps(self) -> list[base.StepId]:
    """Returns the steps that have a directory, sorted."""
    names = (path.name for path in self.path.iterdir())
    found = (n for n in names if re.fullmatch(r"0|[1-9][0-9]*", n))
    return sorted(base.StepId(int(n)) for n in found)

  def _complete(self, steps: Iterable[base.StepId]) -> tuple[base.StepId, ...]:
    return tuple(step for step in steps if self._problem(step) is None)

  def _remove_old(self) -> None:
    steps = self._all_steps()
    kept = self._complete(steps)[-self._keep :]
    for step in steps:
      if kept and step < kept[0]:  # None are if they cannot be read now.
        self._check_fence()
        if self._problem(kept[-1]) is not None:
          return  # It was removed or set aside meanwhile.
        _remove(self.path / str(step))


def _inode(path: pathlib.Path) -> int | None:
  """Returns the inode of a directory; None if it is absent or empty.

  A rename replaces an empty directory, so an empty one does not reserve a name.
  """
  try:
    return path.stat().st_ino if any(path.iterdir()) else None
  except (FileNotFoundError, NotADirectoryError):
    return None


def _remove(path: pathlib.Path) -> None:
  """Removes a directory, as other processes may do too; warns if it cannot.

  It is renamed first, so that no process sees a part of it.
  """
  try:
    if not path.name.endswith(2 * _UNFINISHED):
      path = path.rename(path.with_name(path.name + _UNFINISHED))
    shutil.rmtree(path)
  except FileNotFoundError:
    pass  # Another process has renamed or removed it.
  except OSError as error:
    logging.warning("Cannot remove %s: %s.", path, orbax_item.describe_error(error))


def _remove_item(path: pathlib.Path, item: str) -> None:
  """Removes an item, and temporary folders of Orbax for it."""
  for left in (path / item, *path.glob(f"{item}.*")):
    shutil.rmtree(left, ignore_errors=True)
