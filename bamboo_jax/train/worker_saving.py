"""Checkpoints of a cluster: each node writes its own layers.

Parts go to `checkpoints/STEP.vVIEW.tmp`, in a thread, and no node waits for
another: a node reports its part with its next vote, and when all have been
heard, one of them writes the manifest and renames the folder to `STEP`. If
somebody dies before that, the save is abandoned and the next one removes what
is left of it.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import itertools
import pathlib
from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays
from bamboo_jax.checkpoint import directory as step_directory
from bamboo_jax.checkpoint import files
from bamboo_jax.checkpoint import folder
from bamboo_jax.checkpoint import manifest as manifest_lib
from bamboo_jax.checkpoint import parts
from bamboo_jax.plan import planner
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.train import build
from bamboo_jax.train import saving

_WAIT_SECS = 0.1  # Between two signs of life while a save goes on.
_MOST_TRIES = 2  # Of the save at the end.


class WorkerSaver:
  """The part of one node in the checkpoints of a cluster.

  All nodes see the same folder, and hear the same things in the same order.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      plan: planner.Plan,
      *,
      directory: pathlib.Path,
      number: int,
      warn: Callable[[int, str], None],
  ) -> None:
    """Opens the folder.

    Args:
      config: Of the run.
      task: Model and data.
      plan: Gives the size of the batch.
      directory: Where the checkpoints are.
      number: Number of this node.
      warn: Called with a step and one line when a save has failed or is left
        out, on the node that writes the manifest.

    Raises:
      base.CheckpointError: The folder cannot be used.
    """
    self._every_steps = config.checkpoint.every_steps
    self._folder = folder.Folder(directory, keep=config.checkpoint.keep)
    self._task = task
    self._identity = saving.Identity(config, task, plan)
    self._number = number
    self._warn_of = warn
    self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
    self._save: parts.Save | None = None  # Whose parts are waited for.
    self._parts: dict[int, manifest_lib.Part] = {}
    self._writing: futures.Future[parts.Report] | None = None
    self._finishing: futures.Future[tuple[parts.Save, str]] | None = None
    self._error = ""

  # What is there.

  def steps(self) -> tuple[int, ...]:
    """Returns the steps with a complete checkpoint, oldest first."""
    return self._folder.steps()

  def restore(
      self, step: int, layers: Sequence[str]
  ) -> dict[str, spec_lib.LayerState]:
    """Returns the state of some layers; reads only what these need.

    Args:
      step: One of `steps`, or 0 for the state before the first step.
      layers: Names of the layers.

    Raises:
      base.CheckpointError: The checkpoint cannot be read, or is of another run.
    """
    if step == 0:
      states = spec_lib.init_layers(self._task.whole)
      return {name: states[name] for name in layers}
    shapes = self._task.layer_shapes
    states, meta = step_directory.read(
        self._folder.path / str(step),
        {name: shapes[name] for name in layers},
        subset=True,
    )
    self._identity.check(meta, step=step, directory=self._folder.path)
    return states

  # While training goes on.

  def say(self, step: int) -> dict[str, Any]:
    """Returns what this node says when it votes; plain JSON values.

    Args:
      step: Number of steps done if the vote succeeds.
    """
    is_due = self._every_steps > 0 and step % self._every_steps == 0
    return self._say(begins=is_due)

  def hear(
      self,
      step: int,
      said: Mapping[int, Any],
      *,
      view: int,
      owners: Sequence[Sequence[int]],
      states: Mapping[int, spec_lib.StageState],
  ) -> None:
    """Takes in what all have said, right after the commit of a step.

    If a save is due, copies state to host memory, which blocks until the state
    is computed. All else goes on in a thread.

    Args:
      step: Number of steps done.
      said: By node, what `say` has returned there.
      view: Number of the view.
      owners: For each pipeline, the node of each stage.
      states: State of the stages that this node has, after `step` steps.
    """
    self._hear_parts(said)
    save = parts.plan_save(step, view, owners)
    if not said[save.writer]["begins"]:
      return
    if said[save.writer]["is_busy"]:
      if self._number == save.writer:
        self._warn_of(
            step,
            f"The save of step {step} is left out, as the one before is still "
            "going on.",
        )
      return
    self._begin(save, states)

  def abandon(self) -> None:
    """Gives up the save that waits for parts; call when somebody is gone."""
    self._save = self._writing = None

  # At the end.

  def save_last(
      self,
      step: int,
      gather: Callable[[str, Any], Mapping[int, Any]],
      *,
      view: int,
      owners: Sequence[Sequence[int]],
      states: Mapping[int, spec_lib.StageState],
      waiting: Callable[[], None],
  ) -> None:
    """Saves the state at the end, unless that is done; blocks on all nodes.

    Args:
      step: Number of steps done.
      gather: Returns what all nodes say under a key; see `client.Client`.
      view: As in `hear`.
      owners: As in `hear`.
      states: As in `hear`.
      waiting: Called now and then while nothing else is done.

    Raises:
      base.CheckpointError: It cannot be saved; on all nodes.
      Exception: What `gather` raises; this may then be called again.
    """
    writer = parts.find_writer(owners)
    tries = 0
    for turn in itertools.count():
      self._wait(waiting)
      is_done = self._number == writer and step in self.steps()
      mine = self._say(begins=not is_done)
      said = gather(f"save {step} {turn}", mine)
      self._hear_parts(said)
      if not said[writer]["begins"]:
        return
      if not said[writer]["is_busy"]:
        if tries == _MOST_TRIES:
          raise base.CheckpointError(said[writer]["error"])
        tries += 1
        self._begin(parts.plan_save(step, view, owners), states)

  def close(self) -> None:
    """Waits for what this node is writing, and ends the thread."""
    self._thread.shutdown()

  def _say(self, *, begins: bool) -> dict[str, Any]:
    """Returns what this node says: of its part, and whether a save begins.

    What it says of a new save counts only if it is the one that writes.
    """
    self._hear_end()
    report = None
    if self._writing is not None and self._writing.done():
      report = self._writing.result().to_json()
    is_busy = self._save is not None or self._finishing is not None
    return {
        "begins": begins,
        "is_busy": is_busy,
        "report": report,
        "error": self._error,
    }

  def _begin(
      self,
      save: parts.Save,
      states: Mapping[int, spec_lib.StageState],
  ) -> None:
    """Begins a save in place of one that may be going on."""
    self._save, self._parts, self._writing = save, {}, None
    self._error = ""
    if self._number == save.writer:
      mine = files.path_of(self._folder, save).name
      self._folder.remove_unfinished(lambda name: name != mine)
    layers = {}
    for stage in save.stages.get(self._number, ()):
      layers |= spec_lib.split_layers(states[stage])
    if layers:
      self._writing = self._thread.submit(
          files.write_part,
          self._folder,
          save,
          arrays.copy_to_host(layers),
          node=self._number,
      )

  def _hear_parts(self, said: Mapping[int, Any]) -> None:
    """Ends the save once all parts have been heard of, or one has failed."""
    for node, words in said.items():
      report = words["report"] and parts.Report.from_json(words["report"])
      if not report or not self._save or not report.is_of(self._save):
        continue
      if report.part is None:
        self._warn(self._save, report.error)
        self.abandon()
      else:
        self._parts[node] = report.part
    if self._save and parts.is_complete(self._save, self._parts):
      if self._number == self._save.writer:
        save, meta = self._save, self._identity.describe(self._save.step)
        whole = parts.join_parts(self._parts.values(), self._task.layer_names)
        self._finishing = self._thread.submit(
            files.finish, self._folder, save, whole, meta=meta
        )
      self._save = self._writing = None

  def _hear_end(self) -> None:
    """Notes how the last save that this node had to finish has ended."""
    if self._finishing is not None and self._finishing.done():
      save, error = self._finishing.result()
      self._finishing = None
      if error:
        self._warn(save, error)

  def _warn(self, save: parts.Save, error: str) -> None:
    self._error = (
        f"Cannot save step {save.step} to "
        f"{self._folder.path / str(save.step)}: {error}."
    )
    if self._number == save.writer:
      self._warn_of(save.step, self._error)

  def _wait(self, waiting: Callable[[], None]) -> None:
    """Blocks until this node has written what it had to write."""
    going_on = {f for f in (self._writing, self._finishing) if f is not None}
    while going_on:
      waiting()
      going_on = futures.wait(going_on, timeout=_WAIT_SECS).not_done
