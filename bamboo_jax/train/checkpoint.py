"""Checkpoints keyed by layer, so that any partition can load them.

A save copies the state to host memory and returns; a thread writes it to
`checkpoints/STEP.TRY.tmp`, the manifest last, and renames that to `STEP`. So
whenever the process is killed, what is found under `STEP` is complete, or it is
not accepted.
"""

from collections.abc import Mapping
from concurrent import futures
import errno
import itertools
import os
import pathlib
import re
import shutil
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.train import layer_arrays
from bamboo_jax.train import manifest as manifest_lib
from bamboo_jax.train import orbax_item
from bamboo_jax.train import step_directory

Layers = Mapping[str, spec_lib.LayerState]

_UNFINISHED = ".tmp"  # Suffix of directories that are being made or removed.


class Checkpointer:
  """Saves and restores the state of a run, in one process and one thread.

  Creating it removes what an interrupted save has left. Call `close` at the
  end: a save that is in flight when the interpreter exits may be lost.

  Args:
    directory: Where the checkpoints are; made if needed. Nobody else may write
      there.
    keep: Number of checkpoints to keep, at least 1; older ones are removed once
      a newer one is complete.

  Raises:
    base.CheckpointError: `directory` cannot be used.
  """

  def __init__(self, directory: str | os.PathLike[str], *, keep: int) -> None:
    if keep < 1:
      raise ValueError(f"keep must be at least 1, got {keep}.")
    self._directory = pathlib.Path(directory).absolute()
    self._keep = keep
    try:
      self._directory.mkdir(parents=True, exist_ok=True)
      for path in self._unfinished():
        shutil.rmtree(path)
    except OSError as error:
      raise base.CheckpointError(
          f"Cannot keep checkpoints in {self._directory}: "
          f"{orbax_item.describe_error(error)}."
      ) from error
    self._executor = futures.ThreadPoolExecutor(1, "checkpoint")
    self._saving: futures.Future[None] | None = None
    self._tries = itertools.count()

  def steps(self) -> tuple[int, ...]:
    """Returns the steps with a complete checkpoint, oldest first.

    Sizes of files are compared, contents are not read.
    """
    return tuple(s for s in self._all_steps() if self._problem(s) is None)

  def latest_step(self) -> int | None:
    """Returns the newest step with a complete checkpoint, or None.

    Warns of each newer one that is not complete.
    """
    for step in reversed(self._all_steps()):
      problem = self._problem(step)
      if problem is None:
        return step
      logging.warning("%s", problem)
    return None

  def save(self, step: int, layers: Layers, meta: Mapping[str, Any]) -> None:
    """Starts to save; returns once the arrays are copied to host memory.

    Waits for the previous save first. What is wrong with this one is raised by
    the next call of `save`, `wait` or `close`; older checkpoints stay usable.

    Args:
      step: Number of steps that the state has seen; above `latest_step`.
      layers: State of each layer, in model order; jax or numpy arrays on any
        local devices. They may be donated or changed afterwards.
      meta: What the run says of itself; plain JSON values.

    Raises:
      base.CheckpointError: The previous save failed. This one is not started,
        and may be tried again.
    """
    self.wait()
    latest = max(self.steps(), default=-1)
    if step <= latest:
      raise ValueError(
          f"step must be above {latest}, which is saved in {self._directory}, "
          f"got {step}."
      )
    manifest_lib.check_meta(meta)
    arrays = layer_arrays.copy_to_host(layers)
    self._saving = self._executor.submit(self._write, step, arrays, dict(meta))

  def restore(
      self, step: int, like: Layers, *, subset: bool = False
  ) -> tuple[dict[str, spec_lib.LayerState], dict[str, Any]]:
    """Returns the layers of `like`, and what the run said of itself.

    Args:
      step: One of `steps`.
      like: The layers to restore, with arrays or shapes as leaves. The result
        has the same structure, with numpy arrays of the same dtypes.
      subset: Whether the checkpoint may have other layers too.

    Raises:
      base.CheckpointError: The checkpoint is not complete, or damaged, or of
        another model or optimizer; names the first layer and array that differ.
    """
    path = self._directory / str(step)
    return step_directory.read(path, like, subset=subset)

  def wait(self) -> None:
    """Blocks until no save is in flight.

    Raises:
      base.CheckpointError: The save failed; raised once.
    """
    if self._saving is not None:
      futures.wait([self._saving])  # An interrupt here forgets nothing.
      saving, self._saving = self._saving, None
      saving.result()

  def close(self) -> None:
    """Waits as `wait` does, and ends the thread."""
    try:
      self.wait()
    finally:
      self._executor.shutdown()

  def _unfinished(self) -> list[pathlib.Path]:
    """Returns the directories of saves and removals that were not finished."""
    return list(self._directory.glob(f"[0-9]*{_UNFINISHED}"))

  def _all_steps(self) -> list[int]:
    """Returns the steps that have a directory, complete or not, sorted."""
    names = (path.name for path in self._directory.iterdir())
    return sorted(int(n) for n in names if re.fullmatch(r"0|[1-9][0-9]*", n))

  def _problem(self, step: int) -> base.CheckpointError | None:
    """Returns why the checkpoint of `step` is not complete, or None."""
    try:
      manifest_lib.read_manifest(self._directory / str(step))
    except base.CheckpointError as error:
      return error
    return None

  def _write(
      self,
      step: int,
      layers: Mapping[str, Mapping[str, np.ndarray]],
      meta: Mapping[str, Any],
  ) -> None:
    """Writes a checkpoint and removes old ones; runs in the thread."""
    path = self._directory / str(step)
    # A name of its own, as writes of a try that failed may still be going on.
    unfinished = path.with_name(f"{step}.{next(self._tries)}{_UNFINISHED}")
    for leftover in self._unfinished():
      shutil.rmtree(leftover, ignore_errors=True)
    try:
      _check_space(self._directory, layers)
      step_directory.write(unfinished, step=step, layers=layers, meta=meta)
      if path.exists():  # It is not complete, see `save`.
        shutil.rmtree(path)
      os.rename(unfinished, path)
      manifest_lib.sync(self._directory)
    except (OSError, ValueError) as error:
      # Makes room; what cannot be removed now is removed before the next save.
      shutil.rmtree(unfinished, ignore_errors=True)
      raise base.CheckpointError(
          f"Cannot save step {step} to {path}: "
          f"{orbax_item.describe_error(error)}."
      ) from error
    self._remove_old()

  def _remove_old(self) -> None:
    """Removes all that is older than the newest `keep` complete ones."""
    oldest = self.steps()[-self._keep :][0]
    for step in self._all_steps():
      if step < oldest:
        path = self._directory / str(step)
        try:
          unfinished = path.rename(path.with_name(path.name + _UNFINISHED))
          shutil.rmtree(unfinished)
        except OSError as error:
          logging.warning(
              "Cannot remove %s: %s.", path, orbax_item.describe_error(error)
          )


def _check_space(
    directory: pathlib.Path, layers: Mapping[str, Mapping[str, np.ndarray]]
) -> None:
  """Raises `OSError` if the disk has no room for the arrays.

  A write would say so too, but only after it has filled the disk, on which
  others write.
  """
  needed = sum(a.nbytes for arrays in layers.values() for a in arrays.values())
  free = shutil.disk_usage(directory).free
  if free < needed:
    raise OSError(
        errno.ENOSPC,
        f"{os.strerror(errno.ENOSPC)}: {needed / 1e6:,.1f} MB needed, "
        f"{free / 1e6:,.1f} MB free",
    )
