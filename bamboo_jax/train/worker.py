"""The worker: trains the part of one node, together with those of others.

One step is run after the other. When somebody of the view is gone, whatever was
going on is stopped; all that are left bring their transfers to an end, say what
they have, and agree on how to go on (`agreement`): most often in the middle of
the step, with the stages of the dead on their shadows.
"""

from collections.abc import Collection, Sequence
import dataclasses
import functools
import pathlib
import time
from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax.cluster import client as client_lib
from bamboo_jax.cluster import drain
from bamboo_jax.faults import cluster_file
from bamboo_jax.runtime import coordination
from bamboo_jax.runtime import gate as gate_lib
from bamboo_jax.runtime import recorder as recorder_lib
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.runtime import stage as stage_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.train import agreement as agreement_lib
from bamboo_jax.train import ahead as ahead_lib
from bamboo_jax.train import build
from bamboo_jax.train import fault_points
from bamboo_jax.train import state_moves
from bamboo_jax.train import worker_outputs
from bamboo_jax.train import worker_recovery
from bamboo_jax.train import worker_step

# So long nobody may be found dead after a transfer has failed.
_EXPLAIN_SECS = 30.0


@dataclasses.dataclass(frozen=True)
class Surroundings:
  """What a worker is given by the process it runs in.

  Attributes:
    client: Talks to the agent.
    gate: Closed by `client` when somebody is gone.
    num_slots: Number of slots of the coordination service.
    workdir: Where everything goes.
    secret: Shared by all processes of the cluster.
    faults: What happens on purpose.
    director: Is asked when a fault is due; None without faults.
  """

  client: client_lib.Client
  gate: gate_lib.Gate
  num_slots: int
  workdir: str
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
    self._task = build.make_task(config)
    self._plan = build.make_plan(config, build.make_profile(config, self._task))
    self._rows = build.make_rows(config, self._plan)
    slots = coordination.devices_by_slot()
    self._engine = build.make_engine(
        config,
        self._task,
        self._plan,
        cache=stage_lib.ProgramCache(),
        devices={n: slots[n + 1] for n in range(given.num_slots - 1)},
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
        self._engine, given.client, secret=given.secret
    )
    self._outputs = worker_outputs.WorkerOutputs(
        config, self._task, self._plan, workdir=pathlib.Path(given.workdir)
    )
    self._ahead = ahead_lib.Ahead(
        self._engine, given.client, lambda alive: self._plan_repair(alive).roles
    )
    self._steps = self._begun = self._version = -1
    self._roles: agreement_lib.AllRoles = ()
    self._order: worker_step.Order = ()
    self._recoveries: list[worker_recovery.Recovery] = []

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
        elif self._steps == self._config.num_steps:
          self._finish()
          return
        else:
          self._train_step()
      except base.UnrecoverableHereError:
        raise
      except Exception as error:  # JAX raises what it likes when a peer dies.
        self._recover(error)

  def _prepare(self, facts: dict[str, Any]) -> None:
    """Gets state and programs before this node becomes a member."""
    if facts:
      self._roles = agreement_lib.roles_from_json(facts["roles"])
      for copies in self._plan_repair([self._number]).copies:
        for copy in copies:
          if copy.destination == self._number:
            self._engine.hold(self._number, copy.stage)
      self._ahead.prepare_nodes([self._number])
    else:
      pipelines = range(self._plan.num_pipelines)
      self._steps = self._version = 0
      self._set_roles(tuple(map(self._rows.roles, pipelines)))
      self._engine.set_state(spec_lib.init_layers(self._task.whole))
    self._engine.compile(evaluate=False)

  # One step after the other.

  def _train_step(self) -> None:
    """Runs a step, or the rest of it; after that the next one has begun."""
    votes = self._step.until_vote(self._order, self._say)
    self._commit(votes)
    seen = min(vote["seen"] for vote in votes.values())
    if seen > self._client.adopted.number:
      self._client.adopt(self._client.find_view(seen))
      begun = self._gate.close(seen)
      self._client.post(seen, "begun", dataclasses.asdict(begun))
      self._regroup()
    self._repair()
    self._begin()

  def _say(self) -> dict[str, Any]:
    """Returns what this node says when it votes."""
    self._wait_for_joins()
    measured = self._step.measured
    owed = {str(r.view): r.find_owed(measured) for r in self._recent()}
    return {"seen": self._ahead.newest_ready(), "owed": owed}

  def _wait_for_joins(self) -> None:
    """Waits for nodes that join, on purpose, before the next step."""
    due = [
        f
        for f in self._given.faults
        if f.kind == "join" and f.step == self._steps + 1
    ]
    for fault in due:
      self._given.director.report(fault)
    if due:
      self._client.wait_members(len(self._client.adopted.members) + len(due))
      self._ahead.prepare(self._client.newest)

  def _recent(self) -> list[worker_recovery.Recovery]:
    """Returns the recoveries in the step that is going on."""
    return [r for r in self._recoveries if r.step == self._steps]

  def _commit(self, votes: dict[int, Any]) -> None:
    """Makes the step part of the state; it cannot fail any more."""
    self._step.apply()
    now, recent = time.perf_counter(), self._recent()
    for recovery in recent:
      recovery.step_end_at_secs = now
      key = str(recovery.view)
      recovery.merge_owed(v["owed"].get(key) for v in votes.values())
    self._steps += 1
    sums, secs = self._step.sums, now - self._step.start_secs
    self._outputs.note_step(loss=sums.loss / sums.weight, secs=secs)
    if self._is_writer():
      values = {
          "loss": sums.loss / sums.weight,
          "tokens_per_sec": sums.weight / secs,
          "step_ms": 1e3 * secs,
          "grad_norm": sums.grad_norm,
          "samples_seen": self._steps * self._plan.batch.batch_size,
          "phase_ms": {k: 1e3 * v for k, v in self._step.phase_secs.items()},
          "view": self._client.adopted.number,
      }
      self._outputs.write_step(self._steps, values)
      for recovery in recent:
        self._outputs.write_recovery(self._steps, recovery.as_dict())

  def _begin(self) -> None:
    """Begins the next step from its start."""
    step, batches = self._steps, self._task.batches
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
    self._order = linearize.linearize(
        [self._rows.whole(p, r).timeline for p, r in enumerate(self._roles)]
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
      except base.UnrecoverableHereError:
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
    agreement = agreement_lib.agree(statuses)
    if -1 < self._steps < agreement.steps:
      self._commit({})
    self._steps = agreement.steps
    if self._moves.fetched_for == agreement.known_version > self._version:
      self._moves.install()
    if agreement.lost:
      self._recoveries.append(
          worker_recovery.Recovery(
              step=agreement.steps,
              view=view.number,
              nodes=tuple(sorted(agreement.lost)),
              victims=agreement.victims,
              rung="shadow",
              view_at_secs=client.arrived_secs(view.number),
              agreed_at_secs=agreed_at_secs,
          )
      )
    self._version = agreement.version
    for pipeline in range(len(agreement.roles)):
      self._engine.drain(pipeline)
    self._set_roles(agreement.roles)
    self._gate.level(view.number, self._steps)
    self._gate.open(view.number)
    if agreement.is_fresh and not agreement.lost:
      self._repair()  # Somebody may have come for a place.
    self._plan_rest(agreement)
    for recovery in self._recoveries[-1:] if agreement.lost else ():
      recovery.ready_at_secs = time.perf_counter()

  def _plan_rest(self, agreement: agreement_lib.Agreement) -> None:
    """Finds out what is left of the step."""
    if self._begun != self._steps or agreement.is_fresh:
      self._begin()
    if not agreement.is_fresh:
      self._order = linearize.linearize(
          [
              self._rows.rest(pipeline, roles, agreement.holdings[pipeline])
              for pipeline, roles in enumerate(self._roles)
          ]
      )

  def _status(self) -> agreement_lib.Status:
    node = self._engine.nodes.get(self._number)
    holds = node is not None and self._begun == self._steps
    return agreement_lib.Status(
        steps=self._steps,
        version=self._version,
        roles=self._roles,
        holdings=node.store.holdings() if holds else holdings_lib.NOTHING,
        address=self._moves.address,
    )

  def _set_roles(self, roles: agreement_lib.AllRoles) -> None:
    self._roles = roles
    for pipeline, r in enumerate(roles):
      self._engine.set_roles(pipeline, owners=r.owners, shadows=r.shadows)
    if self._is_writer():
      facts = {"roles": agreement_lib.roles_to_json(roles)}
      self._client.send("facts", facts=facts)

  def _is_writer(self) -> bool:
    return self._number == min(agreement_lib.nodes_of(self._roles))

  # State that moves.

  def _plan_repair(self, alive: Collection[int]) -> agreement_lib.Repair:
    options = self._config.redundancy
    return agreement_lib.plan_repair(
        self._roles,
        {*alive, *agreement_lib.nodes_of(self._roles)},
        replicas=options.mode != "none",
        without_spares=options.rereplicate == "at_commit",
    )

  def _repair(self) -> None:
    """Gives lost places to spare nodes, and stages a shadow again."""
    repair = self._plan_repair(self._client.adopted.numbers)
    if not repair.is_needed:
      return
    version = self._version + 1
    copies = [c for copies in repair.copies for c in copies]
    self._moves.prefetch(copies, version=version)
    self._client.gather(f"repaired {version}", None)
    self._moves.install()
    self._version = version
    self._set_roles(repair.roles)
    self._ahead.compile()

  def _finish(self) -> None:
    """Writes the summary, from the state of all nodes."""
    owners = self._roles[0].owners
    for stage, owner in enumerate(owners):
      self._moves.offer("last", owner, stage)
    if self._is_writer():
      layers = {}
      for stage, owner in enumerate(owners):
        state = self._moves.fetch("last", owner, stage)
        layers |= spec_lib.split_layers(state)
      self._outputs.write_summary(self._steps, layers)
    self._client.gather("finished", None)
    self._client.send("done")
