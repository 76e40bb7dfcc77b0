"""The checkpoints of a run: when they are saved, and whether they fit it."""

from collections.abc import Callable, Mapping
import pathlib
from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax.checkpoint import checkpointer as checkpoint_lib
from bamboo_jax.plan import planner
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.train import build

Layers = Mapping[str, spec_lib.LayerState]


class Identity:
  """What tells the checkpoints of a run from those of other runs.

  Args:
    config: Of the run.
    task: Model and data.
    plan: Gives the size of the batch.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      plan: planner.Plan,
  ) -> None:
    self._seed = config.seed
    self._task = task
    self._batch_size = plan.batch.batch_size

  def describe(self, step: int) -> dict[str, Any]:
    """Returns what a checkpoint after `step` steps says of its run."""
    return {
        "seed": self._seed,
        "batch_size": self._batch_size,
        "samples_seen": step * self._batch_size,
        "model": self._task.whole.model.fingerprint,
        "data": self._task.batches.source.fingerprint,
    }

  def check(
      self, meta: Mapping[str, Any], *, step: int, directory: pathlib.Path
  ) -> None:
    """Raises `base.CheckpointError` if a checkpoint is of another run.

    Args:
      meta: What it says of its run; may say more than `describe`.
      step: Number of steps that it has seen.
      directory: Where it is.
    """
    wanted = self.describe(step)
    found = {key: meta.get(key) for key in wanted}
    differences = _differences(found, wanted)
    if differences:
      raise base.CheckpointError(
          f"The checkpoint of step {step} in {directory} is of another run: "
          f"{'; '.join(differences[:3])}. Choose another workdir, or the "
          "former config."
      )


class Saving:
  """Saves and restores the state of a run."""

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      plan: planner.Plan,
      *,
      directory: pathlib.Path,
      warn: Callable[[int, str], None],
  ) -> None:
    """Opens the directory.

    Args:
      config: Of the run.
      task: Model and data.
      plan: Gives the size of the batch.
      directory: Where the checkpoints are.
      warn: Called with a step and one line when a save has failed.
    """
    self._task = task
    self._identity = Identity(config, task, plan)
    self._directory = directory
    self._warn = warn
    self._checkpointer = checkpoint_lib.Checkpointer(
        directory, keep=config.checkpoint.keep
    )
    self._saved_step: int | None = None

  def restore(self) -> tuple[int, Layers]:
    """Returns the number of steps done and the state after them.

    Raises:
      base.CheckpointError: The newest checkpoint is of another run.
    """
    step = self._checkpointer.latest_step()
    self._saved_step = step
    if step is None:
      return 0, spec_lib.init_layers(self._task.whole)
    layers, meta = self._checkpointer.restore(step, self._task.layer_shapes)
    self._identity.check(meta, step=step, directory=self._directory)
    return step, layers

  def save(self, step: int, layers: Layers) -> None:
    """Starts a save; warns if the one before failed, and goes on."""
    self.wait(step, "Training goes on.")
    self._checkpointer.save(step, layers, self._identity.describe(step))
    self._saved_step = step

  def save_last(self, step: int, layers: Layers) -> None:
    """Saves the state at the end, unless that is done; blocks."""
    self.wait(step, "Trying once more.")
    if self._saved_step != step:
      self._checkpointer.save(step, layers, self._identity.describe(step))
      self._checkpointer.wait()

  def wait(self, step: int, consequence: str) -> None:
    """Waits for the save in flight; warns if it has failed."""
    try:
      self._checkpointer.wait()
    except base.CheckpointError as error:
      self._warn(step, f"{error} {consequence}")
      self._saved_step = None

  def close(self) -> None:
    """Waits for the save in flight and ends."""
    self._checkpointer.close()


def _differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> list[str]:
  """Returns what differs between two trees of plain values, entry by entry."""
  differences = []
  for key in sorted(found.keys() | wanted.keys()):
    there, here = found.get(key), wanted.get(key)
    if isinstance(there, Mapping) and isinstance(here, Mapping):
      differences += _differences(there, here, f"{prefix}{key}.")
    elif there != here:
      differences.append(
          f"it has {prefix}{key}={there!r}, this one has {here!r}"
      )
  return differences
