"""Plans a step: from the costs of layers to rows, memory and predicted time.

Every pipeline gets the same partition. Nodes are numbered pipeline by pipeline,
so that stage `s` of pipeline `d` is on node `d * num_stages + s`.

The partition is chosen by an estimate of memory without rows: one activation
and one gradient on either side of a stage. A stage that is faster than the next
one may queue more. Only the rows show this, so they are made and played: those
of a step, and those after the worst deaths by the estimate. If they need too
much, another partition is chosen, with a lower limit that excludes this one. So
some partitions that fit may be missed if rows queue, but none by the estimate.
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from bamboo_jax import base
from bamboo_jax.plan import (
    batch_split,
    cost_model,
    partition as partition_lib,
    residuals as residuals_lib,
    stages,
)
from bamboo_jax.plan.memory import deaths, explain, model as model_lib, needs, upkeep as upkeep_lib
from bamboo_jax.plan.times import step_time as step_time_lib
from bamboo_jax.schedule import (
    costs as costs_lib,
    failover,
    lines as lines_lib,
    simulate as simulate_lib,
    timeline as timeline_lib,
)

_NUM_DEATHS = 4  # Number of deaths that are played, the worst by the estimate.

_Need = tuple[deaths.Duty, needs.NodeMemory]


@dataclasses.dataclass(frozen=True)
class Plan:
  """Decisions and predictions on a step, before it runs.

  Attributes:
    schedule_name: "1f1b" or "gpipe".
    memory_limit_bytes: Memory of one device; None: no limit.
    memory: Memory of each node of a pipeline.
    timeline: Rows of the first pipeline, without redundant passes.
    worst_memory: Duty and memory of the node with the largest need after any
      single death; None without replicas.
    residuals: Where residuals of redundant passes wait, one of
      `residuals.PLACES`.
  """

  profile: cost_model.Profile
  partition: partition_lib.Partition
  batch: batch_split.BatchSplit
  schedule_name: str
  memory_limit_bytes: int | None
  costs: costs_lib.StageCosts
  memory: tuple[needs.NodeMemory, ...]
  timeline: timeline_lib.Timeline
  step_time: step_time_lib.StepTime
  worst_memory: _Need | None = None
  residuals: str = "host"

  @property
  def num_stages(self) -> int:
    """Number of stages of a pipeline."""
    return self.partition.num_stages

  @property
  def num_pipelines(self) -> int:
    """Number of pipelines."""
    return self.batch.num_pipelines

  @property
  def owners(self) -> tuple[tuple[base.NodeId, ...], ...]:
    """The node of each stage, by pipeline."""
    return tuple(
        tuple(base.nodes(d * self.num_stages, (d + 1) * self.num_stages))
        for d in range(self.num_pipelines)
    )

  @property
  def timelines(self) -> tuple[timeline_lib.Timeline, ...]:
    """The timeline of each pipeline."""
    return tuple(
        self.timeline.renumbered(
            add_nodes=owners[0], add_microbatches=self.batch.microbatches(pipeline)[0]
        )
        for pipeline, owners in enumerate(self.owners)
    )


def make_plan(
    profile: cost_model.Profile,
    *,
    num_stages: int,
    num_pipelines: int,
    num_microbatches: int,
    microbatch_size: int,
    schedule: str = "1f1b",
    memory_limit_bytes: int | None = None,
    num_shares: int | None = None,
    protection: upkeep_lib.Protection | None = None,
    reroutes: bool = False,
    is_remote: bool = False,
    cuts: Sequence[int] | None = None,
) -> Plan:
  """Returns the best plan for equal nodes.

  Args:
    profile: Costs of the layers on one node.
    num_microbatches: Microbatches of each pipeline in a step.
    microbatch_size: In samples; the profile must be for this size.
    schedule: "1f1b" or "gpipe".
    memory_limit_bytes: Memory of one device; None: no limit.
    num_shares: Shares of the global batch, a multiple of `num_pipelines`; by
      default one per pipeline.
    protection: Options of replicas; None without. With replicas the limit holds
      for a step, and for the one after any single death.
    reroutes: Whether other pipelines compute a stage that has lost all nodes;
      the limit then holds for a single death without replicas too.
    is_remote: Whether nodes are separate processes, or their transfers are as
      between processes.
    cuts: Layers at which a stage other than the first may start; by default
      any.

  Raises:
    ValueError: An argument is out of range, or numbers do not divide.
    base.InfeasibleError: No partition fits in `memory_limit_bytes`.
  """
  batch = batch_split.BatchSplit(
      num_pipelines=num_pipelines,
      num_shares=num_pipelines if num_shares is None else num_shares,
      num_microbatches=num_microbatches,
      microbatch_size=microbatch_size,
  )
  upkeep = upkeep_lib.Upkeep(
      num_accumulators=batch.shares_per_pipeline,
      num_rerouted=batch.shares_per_pipeline * (reroutes and num_pipelines > 1),
      num_shares=batch.num_shares,
      protection=protection,
      is_remote=is_remote,
  )
  return _Search(profile, batch, num_stages, schedule, memory_limit_bytes, upkeep, cuts).find()


@dataclasses.dataclass(frozen=True)
class _Search:
  """Searches for a partition whose rows fit; fields as in `make_plan`."""

  profile: cost_model.Profile
  batch: batch_split.BatchSplit
  num_stages: int
  schedule: str
  limit_bytes: int | None
  upkeep: upkeep_lib.Upkeep
  cuts: Sequence[int] | None

  @functools.cached_property
  def _memory(self) -> dict[str, Any]:
    """Arguments of a memory model and of the search for a partition."""
    count = self.batch.num_microbatches
    return dict(
        in_flight=lines_lib.in_flight_bounds(self.num_stages, count, self.schedule),
        upkeep=self.upkeep,
        ties=self.profile.ties,
        cuts=self.cuts,
    )

  def find(self) -> Plan:
    """Returns the plan of the best partition whose rows fit."""
    limit_bytes, most = self.limit_bytes, None
    while True:
      try:
        rows = self._split(limit_bytes)
      except base.InfeasibleError:
        if most is None or self.limit_bytes is None:
          raise
        raise base.InfeasibleError(_explain(*most, self.limit_bytes, self.upkeep)) from None
      played = rows.play(base.nodes(self.num_stages))
      found, worst = rows.find_needs(played)
      most = max([*found, worst] if worst else found, key=lambda need: need[1].total_bytes)
      limit, need = self.limit_bytes, most[1].total_bytes
      if limit is None or need <= limit:
        return self._finish(rows, played, found, worst)
      limit_bytes = rows.bound(most[0]).total_bytes - need + limit

  def _split(self, limit_bytes: int | None) -> "_Rows":
    """Returns the rows of the best partition that fits by the estimate.

    Raises `base.InfeasibleError` if none fits.
    """
    partition = partition_lib.split_layers(
        self.profile.layers,
        num_stages=self.num_stages,
        memory_limit_bytes=limit_bytes,
        **self._memory,
    )
    return _Rows(
        model_lib.MemoryModel(self.profile.layers, **self._memory),
        partition,
        stages.stage_costs(partition, self.profile, num_accumulators=self.upkeep.num_accumulators),
        microbatches=self.batch.microbatches(0),
        in_flight=lines_lib.in_flight_limits(self.num_stages, self.schedule),
    )

  def _finish(
      self,
      rows: "_Rows",
      played: timeline_lib.Timeline,
      found: Sequence[_Need],
      worst: _Need | None,
  ) -> Plan:
    """Returns the plan of rows that fit; see `_Rows.find_needs`."""
    protection, partition = self.upkeep.protection, rows.partition
    free_bytes = None
    if self.limit_bytes is not None:  # Also after a death.
      least = self.limit_bytes - (worst[1].total_bytes if worst else 0)
      free_bytes = [min(self.limit_bytes - m.total_bytes, least) for _, m in found]
    costs, place = residuals_lib.place(
        *(self.profile, partition, rows.costs, played),
        num_microbatches=self.batch.num_microbatches,
        free_bytes=free_bytes,
    )
    return Plan(
        profile=self.profile,
        partition=partition,
        batch=self.batch,
        schedule_name=self.schedule,
        memory_limit_bytes=self.limit_bytes,
        costs=costs,
        memory=tuple(memory for _, memory in found),
        timeline=played,
        step_time=step_time_lib.predict_step_time(
            self.profile,
            partition,
            num_pipelines=self.batch.num_pipelines,
            num_shares=self.batch.num_shares,
            compute_ms=played.span_ms,
            refresh=protection.refresh if protection else None,
        ),
        worst_memory=worst,
        residuals=place,
    )


@dataclasses.dataclass(frozen=True)
class _Rows:
  """Rows of the first pipeline, by the roles of its nodes."""

  model: model_lib.MemoryModel
  partition: partition_lib.Partition
  costs: costs_lib.StageCosts
  microbatches: Sequence[int]
  in_flight: Sequence[int] | None

  def play(self, owners: Sequence[base.NodeId]) -> timeline_lib.Timeline:
    line = lines_lib.Line(owners, self.microbatches, self.in_flight)
    return simulate_lib.simulate([line], costs=self.costs)

  def find_needs(self, timeline: timeline_lib.Timeline) -> tuple[list[_Need], _Need | None]:
    """Returns each node's need in a step, and the largest after a death."""
    num_stages = self.partition.num_stages
    duties = deaths.find_duties(num_stages, self.model.upkeep)
    found = [(duty, self._need(duty, timeline)) for duty in duties[:num_stages]]
    queued = [m.transfer_bytes - self.bound(d).transfer_bytes for d, m in found]
    likely = sorted(
        duties[num_stages:],
        key=lambda duty: self.bound(duty).total_bytes + sum(queued[stage] for stage in duty.owned),
    )[-_NUM_DEATHS:]
    roles = failover.Roles.initial(base.nodes(num_stages))
    after = []
    for duty in likely:
      if duty.stands_in:  # Another pipeline's row queues as much as its own.
        one = found[duty.node][1].transfer_bytes
        bound = self.bound(duty)
        after.append((duty, dataclasses.replace(bound, transfer_bytes=2 * one)))
        continue
      assert duty.victim is not None, duty
      owners = deaths.roles_after(roles, duty.victim).owners
      after.append((duty, self._need(duty, self.play(owners))))
    return found, max(after, key=lambda n: n[1].total_bytes, default=None)

  def bound(self, duty: deaths.Duty) -> needs.NodeMemory:
    return duty.need(self.model, self.partition.bounds)

  def _need(self, duty: deaths.Duty, timeline: timeline_lib.Timeline) -> needs.NodeMemory:
    """Returns the memory of a duty: the estimate, and what its row queues."""
    bound = self.bound(duty)
    row = timeline.instructions[duty.node]
    rows_bytes = timeline_lib.peak_bytes(row, owned=(), costs=self.costs)
    return dataclasses.replace(
        bound, transfer_bytes=max(bound.transfer_bytes, rows_bytes - bound.residual_bytes)
    )


def _explain(
    duty: deaths.Duty, memory: needs.NodeMemory, limit_bytes: int, upkeep: upkeep_lib.Upkeep
) -> str:
  who = f"stage {duty.node}"
  if upkeep.protection is not None or duty.stands_in:
    who = explain.describe(duty)
  size = needs.format_size
  return (
      f"Splits fit in {size(limit_bytes)} per device, but their rows do "
      f"not: in the last one tried, {size(memory.transfer_bytes)} are "
      f"activations and gradients that wait for a neighbour, and {who} "
      + explain.explain_need(memory.total_bytes, limit_bytes, upkeep)
  )
