"""Checkpoints keyed by layer, so that any partition can load them.

A save copies the state to host memory and returns; a thread writes it to
`checkpoints/STEP.TRY.tmp`, the manifest last, and renames that to `STEP`. So
whenever the process is killed, what is found under `STEP` is complete, or it is
not accepted. In a cluster every node writes its part, see `worker_saving`.
"""

from collections.abc import Mapping
from concurrent import futures
import itertools
import os
import shutil
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.checkpoint import directory as step_directory
from bamboo_jax.checkpoint import folder as checkpoint_folder
from bamboo_jax.checkpoint import manifest as manifest_lib
from bamboo_jax.checkpoint import orbax_item
from bamboo_jax.runtime.stage import spec as spec_lib

Layers = Mapping[str, spec_lib.LayerState]


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
    self._folder = checkpoint_folder.Folder(directory, keep=keep)
    self._folder.remove_unfinished()
    self._executor = futures.ThreadPoolExecutor(1, "checkpoint")
    self._saving: futures.Future[None] | None = None
    self._tries = itertools.count()

  def steps(self) -> tuple[int, ...]:
    """Returns the steps with a complete checkpoint, oldest first.

    Sizes of files are compared, contents are not read.
    """
    return self._folder.steps()

  def latest_step(self) -> int | None:
    """Returns the newest step with a complete checkpoint, or None.

    Warns of each newer one that is not complete.
    """
    return self._folder.latest_step()

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
          f"step must be above {latest}, which is saved in "
          f"{self._folder.path}, got {step}."
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
    path = self._folder.path / str(step)
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

  def _write(
      self,
      step: int,
      layers: Mapping[str, Mapping[str, np.ndarray]],
      meta: Mapping[str, Any],
  ) -> None:
    """Writes a checkpoint and removes old ones; runs in the thread."""
    folder = self._folder
    unfinished = folder.name_unfinished(step, f"{next(self._tries)}")
    try:
      folder.remove_unfinished()
      folder.check_space(layers)
      step_directory.write(unfinished, step=step, layers=layers, meta=meta)
      folder.finish(unfinished, step)
    except (OSError, ValueError) as error:
      # Makes room; what cannot be removed now is removed before the next save.
      shutil.rmtree(unfinished, ignore_errors=True)
      raise base.CheckpointError(
          f"Cannot save step {step} to {folder.path / str(step)}: "
          f"{orbax_item.describe_error(error)}."
      ) from error
