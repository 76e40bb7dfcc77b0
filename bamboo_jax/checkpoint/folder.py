"""The folder of the checkpoints of a run.

One that is complete is called by its step. Whatever is being made or removed
ends in `.tmp`; it is never restored, and removed sooner or later.
"""

from collections.abc import Callable, Mapping
import errno
import os
import pathlib
import re
import shutil

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import manifest as manifest_lib
from bamboo_jax.checkpoint import orbax_item

_UNFINISHED = ".tmp"


class Folder:
  """The folder, which is made if needed.

  Attributes:
    path: Where it is.

  Args:
    path: Where the checkpoints are.
    keep: Number of complete checkpoints to keep, at least 1.

  Raises:
    base.CheckpointError: It cannot be used.
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

    Sizes of files are compared, contents are not read.
    """
    return tuple(s for s in self._all_steps() if self.problem(s) is None)

  def latest_step(self) -> int | None:
    """Returns the newest step with a complete checkpoint, or None.

    Warns of each newer one that is not complete.
    """
    for step in reversed(self._all_steps()):
      problem = self.problem(step)
      if problem is None:
        return step
      logging.warning("%s", problem)
    return None

  def problem(self, step: int) -> base.CheckpointError | None:
    """Returns why the checkpoint of `step` is not complete, or None."""
    try:
      manifest_lib.read_manifest(self.path / str(step))
    except base.CheckpointError as error:
      return error
    return None

  def name_unfinished(self, step: int, attempt: str) -> pathlib.Path:
    """Returns where to make the checkpoint of `step`.

    Args:
      step: Number of steps done.
      attempt: Tells attempts apart, as writes of one that failed may still be
        going on.
    """
    return self.path / f"{step}.{attempt}{_UNFINISHED}"

  def remove_unfinished(
      self, is_left: Callable[[str], bool] = lambda name: True
  ) -> None:
    """Removes what was not finished, and `is_left` by its name.

    Warns of what cannot be removed.
    """
    for path in self.path.glob(f"[0-9]*{_UNFINISHED}"):
      if is_left(path.name):
        shutil.rmtree(path, ignore_errors=True)  # Others may do so, too.
        if path.exists():
          logging.warning("Cannot remove %s.", path)

  def check_space(self, layers: Mapping[str, Mapping[str, np.ndarray]]) -> None:
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

  def finish(self, unfinished: pathlib.Path, step: int) -> None:
    """Makes what is in `unfinished` the checkpoint of `step`; removes old ones.

    If there is a complete one of that step already, it stays.

    Raises:
      OSError: It cannot be done.
    """
    path = self.path / str(step)
    if self.problem(step) is not None:
      if path.exists():
        shutil.rmtree(path)
      os.rename(unfinished, path)
      manifest_lib.sync(self.path)
    self._remove_old()

  def _all_steps(self) -> list[int]:
    """Returns the steps that have a directory, complete or not, sorted."""
    names = (path.name for path in self.path.iterdir())
    return sorted(int(n) for n in names if re.fullmatch(r"0|[1-9][0-9]*", n))

  def _remove_old(self) -> None:
    """Removes all that is older than the newest `keep` complete ones."""
    oldest = self.steps()[-self._keep :][0]
    for step in self._all_steps():
      if step < oldest:
        path = self.path / str(step)
        try:
          unfinished = path.rename(path.with_name(path.name + _UNFINISHED))
          shutil.rmtree(unfinished)
        except OSError as error:
          logging.warning(
              "Cannot remove %s: %s.", path, orbax_item.describe_error(error)
          )
