"""The worker: trains the part of one node, together with those of others.

One step is run after the other. When somebody of the view is gone, whatever was
going on is stopped; all that are left bring their transfers to an end, say what
they have, and agree on how to go on (`agreement`): most often in the middle of
the step, with the stages of the dead on their shadows.
"""

from collections.abc import Sequence
import dataclasses
import functools
import pathlib
import time
from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax.cluster import client as client_lib
from bamboo_jax.cluster import drain
from bamboo_jax.cluster import eras
from bamboo_jax.faults import cluster_file
from bamboo_jax.runtime import gate as gate_lib
from bamboo_jax.runtime import recorder as recorder_lib
from bamboo_jax.runtime import rendezvous
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.runtime import stage as stage_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.train import agreement as agreement_lib
from bamboo_jax.train import ahead as ahead_lib
from bamboo_jax.train import build
from bamboo_jax.train import build_recovery
from bamboo_jax.train import cost
from bamboo_jax.train import fault_points
from bamboo_jax.train import layout as layout_lib
from bamboo_jax.train import reinit
from bamboo_jax.train import standing as standing_lib
from bamboo_jax.train import state_moves
from bamboo_jax.train import worker_evaluation
from bamboo_jax.train import worker_outputs
from bamboo_jax.train import worker_recovery
from bamboo_jax.train import worker_saving
from bamboo_jax.train import worker_step

# So long nobody may be found dead after a transfer has failed.
_EXPLAIN_SECS = 30.0
_REPORTED = 5  # Recoveries that `launch.status` shows.


@dataclasses.dataclass(frozen=True)
class Surroundings:
  """What a worker is given by the process it runs in.

  Attributes:
    client: Talks to the agent.
    gate: Closed by `client` when somebody is gone.
    era: The era that this process is in.
    workdir: Where everything goes.
    host: Where to listen, and how others reach this node.
    secret: Shared by all processes of the cluster.
    faults: What happens on purpose.
    director: Is asked when a fault is due; None without faults.
  """

  client: client_lib.Client
  gate: gate_lib.Gate
  era: eras.Era
  workdir: str
  host: str = "127.0.0.1"
  secret: bytes = b""
  faults: Sequence[cluster_file.ClusterFault] = ()
  director: fault_points.Director | None = None


class Worker:
  """One node of a cluster."""

  def __init__(
      self, config: ml_collections.ConfigDict, given: Surroundings
  ) -> None:
    self._config = config
    self._given = given
    self._client = given.client
    self._gate = given.gate
    self._number = given.client.number
    self._evaluates = config.evaluate.every_steps > 0
    self._task = build.make_task(config)
    self._plan = build.make_plan(config, build.make_profile(config, self._task))
    self._rows = build.make_rows(config, self._plan)
    self._engine = build.make_engine(
        config,
        self._task,
        self._plan,
        cache=stage_lib.ProgramCache(),
        devices=reinit.devices_of(given.era),
        gate=given.gate,
    )
    self._step = worker_step.WorkerStep(
        self._engine,
        client=given.client,
        gate=given.gate,
        recorder=recorder_lib.Recorder(),
        clip_norm=config.optimizer.clip_norm,
    )
    self._moves = state_moves.StateMoves(
        self._engine, given.client, host=given.host, secret=given.secret
    )
    self._rules = build_recovery.make_rules(config, self._plan)
    self._standing = standing_lib.Standing(
        self._engine,
        given.client,
        moves=self._moves,
        rules=self._rules,
        restore=self._restore,
    )
    self._outputs = worker_outputs.WorkerOutputs(
        config,
        self._task,
        self._plan,
        workdir=pathlib.Path(given.workdir),
        number=self._number,
        nodes=self._nodes,
        is_writer=lambda: self._standing.is_writer,
    )
    self._saver = worker_saving.WorkerSaver(
        config,
        self._task,
        self._plan,
        directory=build.workdir_paths(given.workdir)["checkpoints"],
        number=self._number,
        warn=lambda step, text: self._outputs.write_event(
            "save_failed", step=step, values={"reason": text}
        ),
    )
    self._evaluation = worker_evaluation.WorkerEvaluation(
        config, self._task, self._engine, client=given.client, gate=given.gate
    )
    self._ahead = ahead_lib.Ahead(
        self._engine,
        given.client,
        lambda alive: self._standing.plan(alive).layout,
        evaluate=self._evaluates,
    )
    self._begun = -1
    self._order: worker_step.Order = ()
    self._recoveries: list[worker_recovery.Recovery] = []
    rendezvous.Breaker(given.client)

  def run(self) -> None:
    """Prepares, trains until all steps are done, and leaves what came out.

    Raises:
      base.UnrecoverableHereError: A stage has no copy left.
    """
    self._prepare(self._client.wait_facts())
    self._client.send("ready")
    self._client.adopt(self._client.wait_first())
    is_new = True
    while True:
      try:
        if is_new:
          is_new = False
          self._regroup()
        elif self._standing.steps == self._config.num_steps:
          self._finish()
          return
        else:
          self._train_step()
      except (base.UnrecoverableHereError, base.CheckpointError):
        raise
      except Exception as error:  # JAX raises what it likes when a peer dies.
        self._recover(error)

  def _prepare(self, facts: dict[str, Any]) -> None:
    """Gets state and programs before this node becomes a member."""
    standing = self._standing
    if facts.get("roles"):
      standing.layout = layout_lib.Layout.from_json(facts)
      for copy in standing.plan([self._number]).copies:
        if copy.destination == self._number:
          self._engine.hold(self._number, copy.stage)
      self._ahead.prepare_nodes([self._number])
    elif not facts.get("restart"):  # Else all that are left decide who begins.
      pipelines = range(self._plan.num_pipelines)
      roles = [self._rows.roles(pipeline) for pipeline in pipelines]
      steps = max(self._saver.steps(), default=0)
      standing.begin(self._rules.start(roles), steps=steps)
      self._outputs.begin(steps)
    self._engine.compile(evaluate=self._evaluates)

  def _restore(self, steps: int, stage: int) -> spec_lib.StageState:
    """Returns the state of a stage after so many steps."""
    names = [layer.name for layer in self._engine.specs[stage].layers]
    return spec_lib.merge_layers(self._saver.restore(steps, names))

  # One step after the other.

  def _train_step(self) -> None:
    """Runs a step, or the rest of it; after that the next one has begun."""
    votes = self._step.until_vote(self._order, self._say)
    self._commit(votes)
    self._evaluate()
    seen = min(vote["seen"] for vote in votes.values())
    if seen > self._client.adopted.number:
      self._client.adopt(self._client.find_view(seen))
      begun = self._gate.close(seen)
      self._client.post(seen, "begun", dataclasses.asdict(begun))
      self._regroup()
    self._improve()
    self._begin()

  def _evaluate(self) -> None:
    """Evaluates if that is due; left out if somebody dies meanwhile."""
    steps = self._standing.steps
    if self._evaluation.is_due(steps):
      with self._outputs.during("useful"):
        loss = self._evaluation.run(steps)
      self._outputs.write_event("eval", step=steps, values={"loss": loss})

  def _say(self) -> dict[str, Any]:
    """Returns what this node says when it votes."""
    self._wait_for_joins()
    measured = self._step.measured
    owed = {str(r.view): r.find_owed(measured) for r in self._recent()}
    ran = self._outputs.say(
        measured, start_secs=self._step.start_secs, recoveries=self._recent()
    )
    return {
        "seen": self._ahead.newest_ready(),
        "owed": owed,
        "ran": ran,
        "save": self._saver.say(self._standing.steps + 1),
    }

  def _wait_for_joins(self) -> None:
    """Waits for nodes that join, on purpose, before the next step."""
    due = [
        f
        for f in self._given.faults
        if f.kind == "join" and f.step == self._standing.steps + 1
    ]
    for fault in due:
      self._given.director.report(fault)
    if due:
      self._client.wait_members(len(self._client.adopted.members) + len(due))
      self._ahead.prepare(self._client.newest)

  def _nodes(self) -> cost.Nodes:
    """Returns all live nodes."""
    layout, members = self._standing.layout, self._client.adopted.numbers
    return cost.Nodes([r.owners for r in layout.roles], members - layout.nodes)

  def _recent(self) -> list[worker_recovery.Recovery]:
    """Returns the recoveries in the step that is going on."""
    return [r for r in self._recoveries if r.step == self._standing.steps]

  def _commit(self, votes: dict[int, Any]) -> None:
    """Makes the step part of the state; it cannot fail any more."""
    self._step.apply()
    now, recent = time.perf_counter(), self._recent()
    for recovery in recent:
      recovery.step_end_at_secs = now
      key = str(recovery.view)
      recovery.merge_owed(v["owed"].get(key) for v in votes.values())
    self._standing.steps += 1
    steps = self._standing.steps
    self._outputs.write_step(
        steps,
        self._step.result(end_secs=now),
        [vote["ran"] for vote in votes.values()],
        recoveries=recent,
        view=self._client.adopted.number,
    )
    if votes:
      with self._outputs.during("checkpoint"):
        self._saver.hear(
            steps,
            {node: vote["save"] for node, vote in votes.items()},
            view=self._client.adopted.number,
            owners=self._engine.owners,
            states=self._states(),
        )
    if self._standing.is_writer:
      last = [r.as_dict() for r in self._recoveries[-_REPORTED:]]
      self._client.send("report", facts={"steps": steps, "recoveries": last})

  def _states(self) -> dict[int, spec_lib.StageState]:
    """Returns the state of the stages that this node has."""
    node = self._engine.nodes.get(self._number)
    return node.state if node else {}

  def _begin(self) -> None:
    """Begins the next step from its start."""
    step, batches = self._standing.steps, self._task.batches
    if step == self._config.num_steps:
      return
    self._begun = step
    self._engine.begin_step(
        step,
        functools.partial(batches.microbatch, step),
        num_microbatches=self._plan.batch.total_microbatches,
    )
    points = fault_points.FaultPoints(
        self._given.faults,
        step=step,
        owners=self._engine.owners,
        node=self._number,
        director=self._given.director,
    )
    self._step.begin(step, reached=points.reach)
    layout = self._standing.layout
    self._order = linearize.linearize(
        [
            self._rows.whole(p, r, shares=layout.shares[p]).timeline
            for p, r in enumerate(layout.roles)
        ]
    )

  # Changes of the view.

  def _recover(self, error: Exception) -> None:
    """Goes on in the view without the dead.

    Args:
      error: Why nothing else can be done; raised if nobody is found dead.
    """
    while True:
      view = self._client.wait_interrupt(_EXPLAIN_SECS)
      if view is None:
        raise error
      self._client.adopt(view)
      try:
        self._regroup()
        return
      except (base.UnrecoverableHereError, base.CheckpointError):
        raise
      except Exception as again:  # As in `run`.
        error = again

  def _regroup(self) -> None:
    """Agrees with all members of the adopted view on how to go on."""
    client, view = self._client, self._client.adopted
    begun = {
        node: drain.Begun(tuple(b["since"]), tuple(b["channels"]))
        for node, b in client.collect("begun").items()
    }
    for channel in drain.find_missing(begun)[self._number]:
      self._engine.follow(channel)
    said = client.gather("status", self._status().to_json())
    statuses = {n: agreement_lib.Status.from_json(s) for n, s in said.items()}
    self._moves.addresses = {n: s.address for n, s in statuses.items()}
    agreed_at_secs = time.perf_counter()
    zones = {m.number: m.zone for m in view.members}
    agreement = agreement_lib.agree(statuses, self._rules, zones=zones)
    if agreement.lost:
      self._recoveries.append(
          worker_recovery.Recovery(
              step=agreement.steps,
              view=view.number,
              nodes=tuple(sorted(agreement.lost)),
              victims=agreement.victims,
              rung=agreement.rung,
              reason=agreement.reason,
              view_at_secs=client.arrived_secs(view.number),
              agreed_at_secs=agreed_at_secs,
          )
      )
    for pipeline in range(len(self._engine.owners)):
      self._engine.drain(pipeline)
    if agreement.lost:
      self._saver.abandon()
    self._standing.catch_up(agreement, commit=lambda: self._commit({}))
    self._gate.level(view.number, self._standing.steps)
    self._gate.open(view.number)
    if agreement.change:
      self._take_rung(agreement)
    elif agreement.is_fresh and not agreement.lost:
      self._improve()  # Somebody may have come for a place.
    self._plan_rest(agreement)
    for recovery in self._recoveries[-1:] if agreement.lost else ():
      recovery.ready_at_secs = time.perf_counter()

  def _take_rung(self, agreement: agreement_lib.Agreement) -> None:
    """Makes new pipelines, as the old ones cannot go on."""
    change = agreement.change
    if not change.layout.roles:
      stages = {int(v.split("/")[1]) for v in agreement.victims}
      raise base.UnrecoverableHereError(tuple(sorted(stages)))
    is_new = not agreement.layout.roles
    self._standing.carry_out(change, restored=agreement.restored)
    if is_new:
      self._outputs.begin(agreement.restored)
    elif change.rolls_back:
      self._outputs.roll_back(agreement.restored)
      self._recoveries[-1].step = agreement.restored
    self._ahead.compile()

  def _plan_rest(self, agreement: agreement_lib.Agreement) -> None:
    """Finds out what is left of the step."""
    if self._begun != self._standing.steps or agreement.is_fresh:
      self._begin()
    if not agreement.is_fresh:
      layout = self._standing.layout
      self._order = linearize.linearize(
          [
              self._rows.rest(p, r, holdings, shares=layout.shares[p])
              for p, (r, holdings) in enumerate(
                  zip(layout.roles, agreement.holdings, strict=True)
              )
          ]
      )

  def _status(self) -> agreement_lib.Status:
    node = self._engine.nodes.get(self._number)
    holds = node is not None and self._begun == self._standing.steps
    held = node.store.holdings() if holds else holdings_lib.NOTHING
    return self._standing.status(held, saved=self._saver.steps())

  def _improve(self) -> None:
    """Makes training faster or safer, between two steps."""
    if self._standing.improve():
      self._ahead.compile()
    is_leaving = self._number in self._client.adopted.leaving
    if is_leaving and self._number not in self._standing.layout.nodes:
      self._client.send("leave")

  def _finish(self) -> None:
    """Saves the state and writes the summary, from the state of all nodes."""
    self._saver.save_last(
        self._standing.steps,
        self._client.gather,
        view=self._client.adopted.number,
        owners=self._engine.owners,
        states=self._states(),
        waiting=self._client.note_progress,
    )
    owners = self._standing.layout.roles[0].owners
    for stage, owner in enumerate(owners):
      self._moves.offer("last", owner, stage)
    if self._standing.is_writer:
      layers = {}
      for stage, owner in enumerate(owners):
        state = self._moves.fetch("last", owner, stage)
        layers |= spec_lib.split_layers(state)
      self._outputs.write_summary(self._standing.steps, layers)
    self._client.gather("finished", None)
    self._saver.close()
    self._client.send("done")
