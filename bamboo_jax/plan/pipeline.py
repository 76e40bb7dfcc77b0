"""Plans one pipeline: partition, rows, and the memory that they need.

The partition is chosen by a bound on memory that knows no rows: it allows for
one activation and one gradient on either side of a stage. A stage that is
faster than the next one may queue more. That shows only in the rows, so they
are made and played: those of a step, and those after the deaths that look
worst. If they need too much, a partition is chosen again, under a limit that
the worst node would not have passed. So where rows queue, some partitions that
fit may be missed; by the bound none is.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.plan import batch_split
from bamboo_jax.plan import cost_model
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import stages
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

_NUM_DEATHS = 4  # Played: those that need most by the bound.


@dataclasses.dataclass(frozen=True)
class PipelinePlan:
  """The first pipeline: node `s` owns stage `s`, microbatches start at 0.

  The fields are those of `planner.Plan`.
  """

  partition: partition_lib.Partition
  costs: costs_lib.StageCosts
  schedule: instruction_lib.Schedule
  timeline: timeline_lib.Timeline
  memory: tuple[needs.NodeMemory, ...]
  worst_memory: tuple[deaths.Duty, needs.NodeMemory] | None = None


def plan_pipeline(
    profile: cost_model.Profile,
    batch: batch_split.BatchSplit,
    *,
    num_stages: int,
    schedule: str,
    balance: str,
    memory_limit_bytes: int | None,
    protection: upkeep_lib.Protection | None = None,
    is_remote: bool = False,
    cuts: Sequence[int] | None = None,
) -> PipelinePlan:
  """Returns the best plan for the first pipeline of `batch`.

  Arguments and errors are those of `planner.make_plan`.
  """
  upkeep = upkeep_lib.of_shares(
      num_shares=batch.num_shares,
      num_pipelines=batch.num_pipelines,
      protection=protection,
      is_remote=is_remote,
  )
  in_flight = bounds.in_flight_bounds(
      schedule, num_stages, batch.num_microbatches
  )
  options = dict(
      in_flight=in_flight, upkeep=upkeep, ties=profile.ties, cuts=cuts
  )
  model = model_lib.MemoryModel(profile.layers, **options)
  duty = memory = None
  limit_bytes = memory_limit_bytes
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
      if duty is None:
        raise
      raise base.InfeasibleError(
          _explain(duty, memory, memory_limit_bytes, protection)
      ) from None
    rows = _Rows(
        model,
        partition,
        stages.stage_costs(
            partition, profile, num_accumulators=upkeep.num_accumulators
        ),
        microbatches=batch.microbatches(0),
        in_flight=bounds.in_flight_limits(
            schedule, num_stages, batch.num_microbatches
        ),
    )
    plan = rows.plan()
    if memory_limit_bytes is None:
      return plan
    duty, memory = max(
        rows.entries(plan), key=lambda entry: entry[1].total_bytes
    )
    missed_bytes = memory.total_bytes - memory_limit_bytes
    if missed_bytes <= 0:
      return plan
    bound = duty.need(model, partition.bounds)
    limit_bytes = bound.total_bytes - missed_bytes


@dataclasses.dataclass(frozen=True)
class _Rows:
  """Rows of a partition, by the roles of its nodes."""

  model: model_lib.MemoryModel
  partition: partition_lib.Partition
  costs: costs_lib.StageCosts
  microbatches: Sequence[int]
  in_flight: Sequence[int] | None

  def plan(self) -> PipelinePlan:
    """Plays the rows of a step, and those after the worst death."""
    num_stages, protection = self.partition.num_stages, self.protection
    schedule, timeline = self._play(range(num_stages))
    duties = deaths.find_duties(num_stages, protection)
    memory = [self._need(duty, timeline) for duty in duties[:num_stages]]
    queued = [
        m.transfer_bytes - self._bound(d).transfer_bytes
        for m, d in zip(memory, duties, strict=False)
    ]
    likely = sorted(
        duties[num_stages:],
        key=lambda duty: self._bound(duty).total_bytes
        + sum(queued[stage] for stage in duty.owned),
    )[-_NUM_DEATHS:]
    worst = max(
        ((duty, self._need_after(duty)) for duty in likely),
        key=lambda entry: entry[1].total_bytes,
        default=None,
    )
    return PipelinePlan(
        self.partition, self.costs, schedule, timeline, tuple(memory), worst
    )

  def entries(
      self, plan: PipelinePlan
  ) -> list[tuple[deaths.Duty, needs.NodeMemory]]:
    """Returns what there is to compare with the limit."""
    duties = deaths.find_duties(self.partition.num_stages, self.protection)
    found = [*zip(duties, plan.memory, strict=False)]
    return found + [plan.worst_memory] * (plan.worst_memory is not None)

  @property
  def protection(self) -> upkeep_lib.Protection | None:
    """How replicas are held."""
    return self.model.upkeep.protection

  def _bound(self, duty: deaths.Duty) -> needs.NodeMemory:
    return duty.need(self.model, self.partition.bounds)

  def _need_after(self, duty: deaths.Duty) -> needs.NodeMemory:
    """Returns what a node needs after a death."""
    roles = failover.Roles.initial(range(self.partition.num_stages))
    roles = deaths.roles_after(roles, duty.victim, self.protection)
    return self._need(duty, self._play(roles.owners)[1])

  def _play(
      self, owners: Sequence[int]
  ) -> tuple[instruction_lib.Schedule, timeline_lib.Timeline]:
    lines = [lines_lib.Line(owners, self.microbatches, self.in_flight)]
    schedule = scheduler.plan_rows(lines, costs=self.costs)
    return schedule, timeline_lib.play(schedule, lines, costs=self.costs)

  def _need(
      self, duty: deaths.Duty, timeline: timeline_lib.Timeline
  ) -> needs.NodeMemory:
    """Returns the bound for a duty, and what its row queues beyond it."""
    bound = self._bound(duty)
    peak_bytes = timeline.peak_bytes[duty.node]
    resident = sum(self.costs.resident_bytes[stage] for stage in duty.owned)
    queued_bytes = (
        peak_bytes - resident - bound.residual_bytes - bound.transfer_bytes
    )
    return dataclasses.replace(
        bound, transfer_bytes=bound.transfer_bytes + max(0, queued_bytes)
    )


def _explain(
    duty: deaths.Duty,
    memory: needs.NodeMemory,
    limit_bytes: int,
    protection: upkeep_lib.Protection | None,
) -> str:
  who = f"stage {duty.node}" if protection is None else explain.describe(duty)
  mib = needs.format_mib
  return (
      f"Splits fit in {mib(limit_bytes)} MiB per device, but their rows do "
      f"not: in the last one tried, {mib(memory.transfer_bytes)} MiB are "
      f"activations and gradients that wait for a neighbour, and {who} "
      + explain.explain_need(memory.total_bytes, limit_bytes, protection)
  )
