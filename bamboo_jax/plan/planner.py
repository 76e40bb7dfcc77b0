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

from bamboo_jax import base
from bamboo_jax.plan import batch_split
from bamboo_jax.plan import cost_model
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import residuals as residuals_lib
from bamboo_jax.plan import stages
from bamboo_jax.plan import step_time as step_time_lib
from bamboo_jax.plan.memory import bounds
from bamboo_jax.plan.memory import deaths
from bamboo_jax.plan.memory import explain
from bamboo_jax.plan.memory import model as model_lib
from bamboo_jax.plan.memory import needs
from bamboo_jax.plan.memory import upkeep as upkeep_lib
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import lines as lines_lib
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule import timeline as timeline_lib

_NUM_DEATHS = 4  # Number of deaths that are played, the worst by the estimate.

_Need = tuple[deaths.Duty, needs.NodeMemory]


@dataclasses.dataclass(frozen=True)
class Plan:
  """Decisions and predictions on a step, before it runs.

  Attributes:
    profile: Costs of layers.
    partition: Layers of each stage.
    batch: Shares and microbatches.
    schedule_name: "1f1b" or "gpipe".
    balance: See `partition.split_layers`.
    memory_limit_bytes: Memory of one device; None: no limit.
    costs: Costs of stages.
    memory: Memory of each node of a pipeline.
    schedule: Rows of the first pipeline, without redundant passes.
    timeline: `schedule`, played.
    step_time: Predicted time of each phase.
    worst_memory: Duty and memory of the node with the largest need after any
      single death; None without replicas.
    residuals: Where residuals of redundant passes wait, one of
      `residuals.PLACES`.
  """

  profile: cost_model.Profile
  partition: partition_lib.Partition
  batch: batch_split.BatchSplit
  schedule_name: str
  balance: str
  memory_limit_bytes: int | None
  costs: costs_lib.StageCosts
  memory: tuple[needs.NodeMemory, ...]
  schedule: instruction_lib.Schedule
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
  def owners(self) -> tuple[tuple[int, ...], ...]:
    """The node of each stage, by pipeline."""
    return tuple(
        tuple(range(d * self.num_stages, (d + 1) * self.num_stages))
        for d in range(self.num_pipelines)
    )

  @property
  def timelines(self) -> tuple[timeline_lib.Timeline, ...]:
    """The timeline of each pipeline."""
    return tuple(
        self.timeline.renumbered(
            add_nodes=owners[0],
            add_microbatches=self.batch.microbatches(pipeline)[0],
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
    balance: str = "compute",
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
    num_stages: Stages of each pipeline.
    num_pipelines: Number of pipelines.
    num_microbatches: Microbatches of each pipeline in a step.
    microbatch_size: In samples; the profile must be for this size.
    schedule: "1f1b" or "gpipe".
    balance: "compute" for the fastest slowest stage, "memory" for the smallest
      largest one.
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
      num_rerouted=batch.shares_per_pipeline
      if reroutes and num_pipelines > 1
      else 0,
      is_summed=batch.num_shares > 1,
      protection=protection,
      is_remote=is_remote,
  )
  options = dict(
      in_flight=bounds.in_flight_bounds(schedule, num_stages, num_microbatches),
      upkeep=upkeep,
      ties=profile.ties,
      cuts=cuts,
  )
  model = model_lib.MemoryModel(profile.layers, **options)
  limit_bytes, most = memory_limit_bytes, None
  while True:
    try:
      partition = partition_lib.split_layers(
          profile.layers,
          num_stages=num_stages,
          memory_limit_bytes=limit_bytes,
          balance=balance,
          **options,
      )
    except base.InfeasibleError:
      if most is None:
        raise
      raise base.InfeasibleError(
          _explain(*most, memory_limit_bytes, upkeep)
      ) from None
    costs = stages.stage_costs(
        partition, profile, num_accumulators=upkeep.num_accumulators
    )
    rows = _Rows(
        model,
        partition,
        costs,
        microbatches=batch.microbatches(0),
        in_flight=bounds.in_flight_limits(schedule, num_stages),
    )
    row_schedule, timeline = rows.play(range(num_stages))
    found, worst = rows.find_needs(timeline)
    most = max(
        [*found, worst] if worst else found,
        key=lambda need: need[1].total_bytes,
    )
    limit = memory_limit_bytes
    if limit is None or most[1].total_bytes <= limit:
      costs, place = _place_residuals(
          *(profile, partition, costs, timeline, found, worst),
          num_microbatches=num_microbatches,
          limit_bytes=limit,
      )
      return Plan(
          profile=profile,
          partition=partition,
          batch=batch,
          schedule_name=schedule,
          balance=balance,
          memory_limit_bytes=memory_limit_bytes,
          costs=costs,
          memory=tuple(memory for _, memory in found),
          schedule=row_schedule,
          timeline=timeline,
          step_time=step_time_lib.predict_step_time(
              profile,
              partition,
              num_pipelines=num_pipelines,
              num_shares=batch.num_shares,
              compute_ms=timeline.span_ms,
              refresh=protection and protection.refresh,
          ),
          worst_memory=worst,
          residuals=place,
      )
    limit_bytes = rows.bound(most[0]).total_bytes - most[1].total_bytes + limit


def _place_residuals(
    profile: cost_model.Profile,
    partition: partition_lib.Partition,
    costs: costs_lib.StageCosts,
    timeline: timeline_lib.Timeline,
    found: Sequence[_Need],
    worst: _Need | None,
    *,
    num_microbatches: int,
    limit_bytes: int | None,
) -> tuple[costs_lib.StageCosts, str]:
  """Returns the costs of redundant passes, and where their residuals wait."""
  rate, bubbles = profile.host_bytes_per_ms, timeline.bubbles
  if rate is None:
    return costs, "host"
  free_bytes = None
  if limit_bytes is not None:
    least = worst[1].total_bytes if worst else 0
    needs = [max(memory.total_bytes, least) for _, memory in found]
    free_bytes = [limit_bytes - need for need in needs]
  place = residuals_lib.choose_place(
      costs,
      num_microbatches=num_microbatches,
      free_bytes=free_bytes,
      wait_ms=[timeline.span_ms * b for _, b in sorted(bubbles.items())],
      host_bytes_per_ms=rate,
  )
  input_bytes = [
      sum(layer.activation_bytes for layer in stage)
      for stage in stages.layers_by_stage(profile, partition)
  ]
  costs = residuals_lib.with_place(
      costs, place, host_bytes_per_ms=rate, input_bytes=input_bytes
  )
  return costs, place


@dataclasses.dataclass(frozen=True)
class _Rows:
  """Rows of the first pipeline, by the roles of its nodes."""

  model: model_lib.MemoryModel
  partition: partition_lib.Partition
  costs: costs_lib.StageCosts
  microbatches: Sequence[int]
  in_flight: Sequence[int] | None

  def play(
      self, owners: Sequence[int]
  ) -> tuple[instruction_lib.Schedule, timeline_lib.Timeline]:
    lines = [lines_lib.Line(owners, self.microbatches, self.in_flight)]
    schedule = scheduler.plan_rows(lines, costs=self.costs)
    return schedule, timeline_lib.play(schedule, lines, costs=self.costs)

  def find_needs(
      self, timeline: timeline_lib.Timeline
  ) -> tuple[list[_Need], _Need | None]:
    """Returns each node's need in a step, and the largest after a death."""
    num_stages = self.partition.num_stages
    protection = self.model.upkeep.protection
    duties = deaths.find_duties(num_stages, self.model.upkeep)
    found = [(duty, self._need(duty, timeline)) for duty in duties[:num_stages]]
    queued = [m.transfer_bytes - self.bound(d).transfer_bytes for d, m in found]
    likely = sorted(
        duties[num_stages:],
        key=lambda duty: self.bound(duty).total_bytes
        + sum(queued[stage] for stage in duty.owned),
    )[-_NUM_DEATHS:]
    roles = failover.Roles.initial(range(num_stages))
    after = []
    for duty in likely:
      if duty.stands_in:  # Another pipeline's row queues as much as its own.
        one = found[duty.node][1].transfer_bytes
        bound = self.bound(duty)
        after.append((duty, dataclasses.replace(bound, transfer_bytes=2 * one)))
        continue
      owners = deaths.roles_after(roles, duty.victim, protection).owners
      after.append((duty, self._need(duty, self.play(owners)[1])))
    return found, max(after, key=lambda n: n[1].total_bytes, default=None)

  def bound(self, duty: deaths.Duty) -> needs.NodeMemory:
    return duty.need(self.model, self.partition.bounds)

  def _need(
      self, duty: deaths.Duty, timeline: timeline_lib.Timeline
  ) -> needs.NodeMemory:
    """Returns the memory of a duty: the estimate, and what its row queues."""
    bound = self.bound(duty)
    resident = sum(self.costs.resident_bytes[stage] for stage in duty.owned)
    rows_bytes = timeline.peak_bytes[duty.node] - resident
    return dataclasses.replace(
        bound,
        transfer_bytes=max(
            bound.transfer_bytes, rows_bytes - bound.residual_bytes
        ),
    )


def _explain(
    duty: deaths.Duty,
    memory: needs.NodeMemory,
    limit_bytes: int,
    upkeep: upkeep_lib.Upkeep,
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
