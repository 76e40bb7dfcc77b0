"""What a cluster leaves of a run: log, checkpoints, recoveries, summary."""

from collections.abc import Callable, Mapping
import pathlib
import time
from typing import Any

import ml_collections

from bamboo_jax.cluster import client as client_lib
from bamboo_jax.plan import planner
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.train import build
from bamboo_jax.train import cost
from bamboo_jax.train import saving
from bamboo_jax.train import standing as standing_lib
from bamboo_jax.train import state_moves
from bamboo_jax.train import worker_outputs
from bamboo_jax.train import worker_recovery
from bamboo_jax.train import worker_step

_REPORTED = 5  # Last recoveries that `launch.status` shows.


class Record:
  """The part of one node in it.

  Args:
    config: Of the run.
    task: Model and data.
    plan: Of its start.
    workdir: Where everything goes.
    client: Talks to the agent.
    engine: Has the local node.
    standing: How far this node is.
  """

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      task: build.Task,
      plan: planner.Plan,
      *,
      workdir: str,
      client: client_lib.Client,
      engine: engine_lib.Engine,
      standing: standing_lib.Standing,
  ) -> None:
    self._client = client
    self._standing = standing
    self._recoveries: list[worker_recovery.Recovery] = []
    self._outputs = worker_outputs.WorkerOutputs(
        config,
        task,
        plan,
        workdir=pathlib.Path(workdir),
        number=client.number,
        nodes=self._nodes,
        is_writer=lambda: standing.is_writer,
    )
    self._saver = saving.make_writer(
        config,
        task,
        plan,
        directory=build.workdir_paths(workdir)["checkpoints"],
        member=client.number,
        warn=lambda step, text: self._outputs.write_event(
            "save_failed", step=step, values={"reason": text}
        ),
    )
    self.use(engine)

  def use(self, engine: engine_lib.Engine) -> None:
    """Takes the place of the engine until now."""
    self._engine = engine

  # State on disk.

  def saved_steps(self) -> tuple[int, ...]:
    """Returns the steps with a complete checkpoint, oldest first."""
    return self._saver.steps()

  def restore(self, steps: int, stage: int) -> spec_lib.StageState:
    """Returns the state of a stage after so many steps.

    Raises:
      base.CheckpointError: There is no such checkpoint, or it is damaged.
    """
    names = [layer.name for layer in self._engine.specs[stage].layers]
    return spec_lib.merge_layers(self._saver.restore(steps, names))

  def begin(self, steps: int) -> None:
    """Notes that the run begins, or goes on, after so many steps."""
    self._outputs.begin(steps)

  def roll_back(self, steps: int) -> None:
    """Notes that all steps but the first so many will be done again."""
    self._outputs.roll_back(steps)
    for recovery in self._recoveries:
      if not recovery.step_end_at_secs:
        recovery.step = steps

  # Steps and deaths.

  def add(self, recovery: worker_recovery.Recovery) -> None:
    """Notes that somebody was lost."""
    self._recoveries.append(recovery)
    self._saver.abandon()

  def note_ready(self) -> None:
    """Notes that it is planned how to go on after all losses so far."""
    now = time.perf_counter()
    for recovery in self._recoveries:
      recovery.ready_at_secs = recovery.ready_at_secs or now

  def say(self, step: worker_step.WorkerStep) -> dict[str, Any]:
    """Returns what this node says when it votes for a step."""
    recent = self._recent(self._standing.steps)
    owed = {str(r.view): r.find_owed(step.measured) for r in recent}
    ran = self._outputs.say(
        step.measured, start_secs=step.start_secs, recoveries=recent
    )
    save = self._saver.say(self._standing.steps + 1)
    return {"owed": owed, "ran": ran, "save": save}

  def commit(
      self, step: worker_step.WorkerStep, votes: Mapping[int, Any]
  ) -> None:
    """Notes a step that has been committed.

    Args:
      step: Has run it.
      votes: What all have said; empty if this node has not heard it.
    """
    now, steps = time.perf_counter(), self._standing.steps
    recent = self._recent(steps - 1)
    for recovery in recent:
      recovery.step_end_at_secs = now
      key = str(recovery.view)
      recovery.merge_owed(v["owed"].get(key) for v in votes.values())
    self._outputs.write_step(
        steps,
        step.result(end_secs=now),
        [vote["ran"] for vote in votes.values()],
        recoveries=recent,
        view=self._client.adopted.number,
    )
    if votes:
      with self._outputs.during("checkpoint"):
        self._saver.hear(
            steps,
            {node: vote["save"] for node, vote in votes.items()},
            **self._whose_state(),
        )
    if self._standing.is_writer:
      last = [r.as_dict() for r in self._recoveries[-_REPORTED:]]
      self._client.send("report", facts={"steps": steps, "recoveries": last})

  def note_evaluation(self, evaluate: Callable[[], float]) -> None:
    """Writes the loss that `evaluate` returns, and charges its time."""
    with self._outputs.during("useful"):
      loss = evaluate()
    step = self._standing.steps
    self._outputs.write_event("eval", step=step, values={"loss": loss})

  def finish(self, moves: state_moves.StateMoves) -> None:
    """Saves the state and writes the summary; may be done again.

    Raises:
      base.CheckpointError: The state cannot be saved.
      ViewChangedError, OSError: Somebody is gone.
    """
    self._saver.save_last(
        self._standing.steps,
        self._client.gather,
        waiting=self._client.note_progress,
        **self._whose_state(),
    )
    owners = self._standing.layout.roles[0].owners
    for stage, owner in enumerate(owners):
      moves.offer("last", owner, stage)
    if self._standing.is_writer:
      layers = {}
      for stage, owner in enumerate(owners):
        layers |= spec_lib.split_layers(moves.fetch("last", owner, stage))
      self._outputs.write_summary(self._standing.steps, layers)

  def close(self) -> None:
    """Waits for what is being written."""
    self._saver.close()

  def _recent(self, step: int) -> list[worker_recovery.Recovery]:
    """Returns the recoveries in a step."""
    return [r for r in self._recoveries if r.step == step]

  def _whose_state(self) -> dict[str, Any]:
    """Returns who has which state, and that of this node."""
    node = self._engine.nodes.get(self._client.number)
    return {
        "view": self._client.adopted.number,
        "owners": self._engine.owners,
        "states": node.state if node else {},
    }

  def _nodes(self) -> cost.Nodes:
    """Returns all live nodes."""
    layout, members = self._standing.layout, self._client.adopted.numbers
    return cost.Nodes([r.owners for r in layout.roles], members - layout.nodes)
