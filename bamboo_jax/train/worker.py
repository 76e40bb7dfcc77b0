"""The worker: trains the part of one node, together with those of others.

One step is run after the other. When somebody of the view is gone, whatever was
going on is stopped; all that are left bring their transfers to an end, say what
they have, and agree on how to go on (`agreement`): most often in the middle of
the step, with the stages of the dead on their shadows.
"""

from collections.abc import Sequence
import dataclasses
import functools
import time
from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import client as client_lib
from bamboo_jax.cluster import settle
from bamboo_jax.cluster.sessions import eras
from bamboo_jax.faults import cluster_file
from bamboo_jax.recovery import agreement as agreement_lib
from bamboo_jax.recovery import assignment as layout_lib
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.phases import answer
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.runtime.wire import transfer_log
from bamboo_jax.runtime.wire import unblock
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.train import ahead as ahead_lib
from bamboo_jax.train import build
from bamboo_jax.train import build_recovery
from bamboo_jax.train import fault_points
from bamboo_jax.train import reinit
from bamboo_jax.train import standing as standing_lib
from bamboo_jax.train import state_moves
from bamboo_jax.train import worker_evaluation
from bamboo_jax.train import worker_record
from bamboo_jax.train import worker_recovery
from bamboo_jax.train import worker_step

# So long nobody may be found dead after a transfer has failed.
_EXPLAIN_SECS = 30.0


@dataclasses.dataclass(frozen=True)
class Surroundings:
  """What a worker is given by the process it runs in.

  Attributes:
    client: Talks to the agent.
    log: Of transfers; stopped by `client` when somebody is gone.
    era: The era that this process is in.
    workdir: Where everything goes.
    host: Where to listen, and how others reach this node.
    secret: Shared by all processes of the cluster.
    faults: What happens on purpose.
    director: Is asked when a fault is due; None without faults.
  """

  client: client_lib.Client
  log: transfer_log.TransferLog
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
    self._log = given.log
    self._number = given.client.number
    self._evaluates = config.evaluate.every_steps > 0
    self._task = build.make_task(config)
    self._plan = build.make_plan(config, build.make_profile(config, self._task))
    self._rows = build.make_rows(config, self._plan)
    self._engine = build.make_engine(
        config,
        self._task,
        self._plan,
        cache=program_cache.ProgramCache(),
        devices=reinit.devices_of(given.era),
        log=given.log,
    )
    self._step = worker_step.WorkerStep(
        self._engine,
        client=given.client,
        log=given.log,
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
        restore=lambda steps, stage: self._record.restore(steps, stage),
    )
    self._record = worker_record.Record(
        config,
        self._task,
        self._plan,
        workdir=given.workdir,
        client=given.client,
        engine=self._engine,
        standing=self._standing,
    )
    self._evaluation = worker_evaluation.WorkerEvaluation(
        config, self._task, self._engine, client=given.client, log=given.log
    )
    self._ahead = ahead_lib.Ahead(
        self._engine,
        given.client,
        lambda alive: self._standing.plan(alive).layout,
        evaluate=self._evaluates,
    )
    self._mover = reinit.Mover(
        self._engine,
        given.client,
        given.log,
        self._ahead,
        era=given.era.number,
        host=given.host,
        preconnects=config.recovery.preconnect,
    )
    self._begun = -1
    self._order: worker_step.Order = ()
    unblock.WaitBreaker(given.client)

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
          self._engine.load_programs(self._number, copy.stage)
      self._ahead.prepare_nodes([self._number])
    elif not facts.get("restart"):  # Else all that are left decide who begins.
      pipelines = range(self._plan.num_pipelines)
      roles = [self._rows.roles(pipeline) for pipeline in pipelines]
      steps = max(self._record.saved_steps(), default=0)
      standing.begin(self._rules.start(roles), steps=steps)
      self._record.begin(steps)
    compile_ahead.compile_all(self._engine, evaluate=self._evaluates)

  # One step after the other.

  def _train_step(self) -> None:
    """Runs a step, or the rest of it; after that the next one has begun."""
    votes = self._step.until_vote(self._order, self._say)
    self._commit(votes)
    self._evaluate()
    seen = min(vote["seen"] for vote in votes.values())
    if seen > self._client.adopted.number:
      self._client.adopt(self._client.find_view(seen))
      begun = self._log.stop(seen)
      self._client.post(seen, "begun", json_lib.to_plain(begun))
      self._regroup()
    self._improve()
    said = [vote["connect"] for vote in votes.values()]
    self._mover.preconnect(said, self._standing.version)
    self._begin()

  def _evaluate(self) -> None:
    """Evaluates if that is due; left out if somebody dies meanwhile."""
    steps = self._standing.steps
    if self._evaluation.is_due(steps):
      self._record.note_evaluation(lambda: self._evaluation.run(steps))

  def _say(self) -> dict[str, Any]:
    """Returns what this node says when it votes."""
    self._wait_for_joins()
    return self._record.say(self._step) | {
        "seen": self._ahead.newest_ready(),
        "connect": self._mover.say(self._standing.version),
    }

  def _wait_for_joins(self) -> None:
    """Waits for nodes that join, on purpose, before the next step."""
    due = [
        f
        for f in self._given.faults
        if f.kind == "join" and f.step == self._standing.steps + 1
    ]
    due = [f for f in due if not self._given.director.report(f)]
    if due:
      self._client.wait_members(len(self._client.adopted.members) + len(due))
      self._ahead.prepare(self._client.newest)

  def _commit(self, votes: dict[int, Any]) -> None:
    """Makes the step part of the state; it cannot fail any more."""
    self._step.apply()
    self._standing.steps += 1
    self._record.commit(self._step, votes)

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
        node: json_lib.from_plain(settle.Begun, b)
        for node, b in client.collect("begun").items()
    }
    if (era := settle.find_era(begun)) > self._log.begun().era:
      self._mover.move(era)  # Others have, and nothing has begun here since.
    for channel in settle.find_unanswered(begun)[self._number]:
      answer.answer(self._engine, channel)
    said = client.gather("status", self._status().to_json())
    statuses = {n: agreement_lib.Status.from_json(s) for n, s in said.items()}
    self._moves.addresses = {n: s.address for n, s in statuses.items()}
    agreed_at_secs = time.perf_counter()
    zones = {m.number: m.zone for m in view.members}
    agreement = agreement_lib.agree(
        statuses, self._rules, zones=zones, leaving=view.leaving
    )
    if agreement.lost:
      self._record.add(
          worker_recovery.Recovery(
              step=agreement.steps,
              view=view.number,
              nodes=tuple(sorted(agreement.lost)),
              victims=tuple(map(str, agreement.victims)),
              rung=agreement.rung,
              reason=agreement.reason,
              view_at_secs=client.arrived_secs(view.number),
              agreed_at_secs=agreed_at_secs,
          )
      )
    for pipeline in range(len(self._engine.owners)):
      self._engine.drain(pipeline)
    self._standing.catch_up(agreement, commit=lambda: self._commit({}))
    self._log.settle(view.number, self._standing.steps)
    self._log.resume(view.number)
    if agreement.is_fresh:
      self._mover.move(view.era)
    if agreement.change:
      self._take_rung(agreement)
    elif agreement.is_fresh and not agreement.lost:
      self._improve()  # Somebody may have come for a place.
    self._plan_rest(agreement)
    if agreement.lost:
      self._record.note_ready()

  def _take_rung(self, agreement: agreement_lib.Agreement) -> None:
    """Makes new pipelines, as the old ones cannot go on."""
    change = agreement.change
    if not change.layout.roles:
      stages = {place.stage for place in agreement.victims}
      raise base.UnrecoverableHereError(tuple(sorted(stages)))
    is_new = not agreement.layout.roles
    self._standing.carry_out(change, restored=agreement.restored)
    if is_new:
      self._record.begin(agreement.restored)
    elif change.rolls_back:
      self._record.roll_back(agreement.restored)
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
    return self._standing.status(held, saved=self._record.saved_steps())

  def _improve(self) -> None:
    """Makes training faster or safer, between two steps."""
    self._mover.move(self._client.adopted.era)
    if self._standing.improve():
      self._ahead.compile()
    is_leaving = self._number in self._client.adopted.leaving
    if is_leaving and self._number not in self._standing.layout.nodes:
      self._client.send("leave")

  def _finish(self) -> None:
    """Leaves what came out; all members are needed for that."""
    self._record.finish(self._moves)
    self._client.gather("finished", None)
    self._record.close()
    self._client.send("done")
