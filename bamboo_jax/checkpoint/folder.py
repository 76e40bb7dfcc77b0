"""The folder of the checkpoints of a run.

One that is complete is called by its step. Whatever is being made or removed
ends in `.tmp`; it is never restored, and removed sooner or later.
"""

from collections.abc import Iterable, Mapping
import contextlib
import errno
import os
import pathlib
import re
import shutil

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import directory
from bamboo_jax.checkpoint import manifest as manifest_lib
from bamboo_jax.checkpoint import orbax_item

_UNFINISHED = ".tmp"


class Folder:
  """The folder `path`, made if needed; keeps `keep` complete checkpoints.

  Raises `base.CheckpointError` if it cannot be used.
  """

  def __init__(self, path: str | os.PathLike[str], *, keep: int) -> None:
    if keep < 1:
      raise ValueError(f"keep must be at least 1, got {keep}.")
    self.path = pathlib.Path(path).absolute()
    self._keep = keep
    try:
      self.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise base.CheckpointError(
          f"Cannot keep checkpoints in {self.path}: "
          f"{orbax_item.describe_error(error)}."
      ) from error

  def steps(self) -> tuple[int, ...]:
    """Returns the steps with a complete checkpoint, oldest first.

    Sizes of files are compared, contents are not read. Warns of those that are
    newer and not complete.
    """
    steps = self._all_steps()
    for step in reversed(steps):
      problem = self._problem(step)
      if problem is None:
        break
      logging.warning("%s", problem)
    return self._complete(steps)

  def write_part(
      self,
      name: str,
      item: str,
      layers: Mapping[str, Mapping[str, np.ndarray]],
      *,
      step: int,
  ) -> manifest_lib.Manifest:
    """Writes one item of the checkpoint that is made under `name`; blocks.

    `name` tells attempts apart, as writes of a failed one may still go on.
    Raises as `directory.write_part`; what there was is removed.
    """
    path = self._unfinished(name)
    try:
      self._check_space(layers)
      path.mkdir(exist_ok=True)
      _remove_item(path, item)  # Of a try before.
      return directory.write_part(path, item, layers, step=step)
    except (OSError, ValueError):
      _remove_item(path, item)  # Makes room.
      with contextlib.suppress(OSError):  # Others may have items there.
        path.rmdir()
      raise

  def finish(self, name: str, manifest: manifest_lib.Manifest) -> None:
    """Makes the checkpoint written under `name` complete; removes old ones.

    An existing complete one of that step stays. Raises `OSError`.
    """
    unfinished = self._unfinished(name)
    path = self.path / str(manifest.step)
    try:
      if problem := manifest_lib.find_problem(unfinished, manifest.files):
        text = f"{problem}; all nodes need a folder that they share"
        raise OSError(errno.ENOENT, text)
      manifest_lib.write_manifest(unfinished, manifest)
      if self._problem(manifest.step) is not None:
        if path.exists():
          shutil.rmtree(path)
        os.rename(unfinished, path)
        manifest_lib.sync(self.path)
    finally:
      shutil.rmtree(unfinished, ignore_errors=True)  # Unless it was renamed.
    self._remove_old()

  def remove_unfinished(self, but: str) -> None:
    """Removes what was not finished, except what is made under `but`.

    Warns of what cannot be removed.
    """
    for path in self.path.glob(f"[0-9]*{_UNFINISHED}"):
      if path != self._unfinished(but):
        shutil.rmtree(path, ignore_errors=True)  # Others may do so, too.
        if path.exists():
          logging.warning("Cannot remove %s.", path)

  def _unfinished(self, name: str) -> pathlib.Path:
    return self.path / f"{name}{_UNFINISHED}"

  def _problem(self, step: int) -> base.CheckpointError | None:
    """Returns why the checkpoint of `step` is not complete, or None."""
    try:
      manifest_lib.read_manifest(self.path / str(step))
    except base.CheckpointError as error:
      return error
    return None

  def _check_space(
      self, layers: Mapping[str, Mapping[str, np.ndarray]]
  ) -> None:
    """Raises `OSError` if the disk has no room for the arrays.

    A write would say so too, but only after it has filled the disk, on which
    others write.
    """
    needed = sum(
        a.nbytes for arrays in layers.values() for a in arrays.values()
    )
    free = shutil.disk_usage(self.path).free
    if free < needed:
      raise OSError(
          errno.ENOSPC,
          f"{os.strerror(errno.ENOSPC)}: {needed / 1e6:,.1f} MB needed, "
          f"{free / 1e6:,.1f} MB free",
      )

  def _all_steps(self) -> list[int]:
    """Returns the steps that have a directory, sorted."""
    names = (path.name for path in self.path.iterdir())
    return sorted(int(n) for n in names if re.fullmatch(r"0|[1-9][0-9]*", n))

  def _complete(self, steps: Iterable[int]) -> tuple[int, ...]:
    return tuple(step for step in steps if self._problem(step) is None)

  def _remove_old(self) -> None:
    steps = self._all_steps()
    kept = self._complete(steps)[-self._keep :]
    for step in steps:
      if kept and step < kept[0]:  # None are if they cannot be read now.
        path = self.path / str(step)
        try:
          unfinished = path.rename(path.with_name(path.name + _UNFINISHED))
          shutil.rmtree(unfinished)
        except OSError as error:
          logging.warning(
              "Cannot remove %s: %s.", path, orbax_item.describe_error(error)
          )


def _remove_item(path: pathlib.Path, item: str) -> None:
  """Removes an item, and what Orbax has left of its making."""
  for left in (path / item, *path.glob(f"{item}.*")):
    shutil.rmtree(left, ignore_errors=True)
