"""Plans one pipeline: partition, rows, and the memory that they need.

The partition is chosen by a bound on memory that knows no rows: it allows for
one activation and one gradient on either side of a stage. A stage that is
faster than the next one may queue more. That shows only in the rows, so they
are made and played; if they need too much, a partition is chosen again, under a
limit that the worst stage would not have passed.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.plan import batch_split
from bamboo_jax.plan import cost_model
from bamboo_jax.plan import memory as memory_lib
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import stages
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule import timeline as timeline_lib


@dataclasses.dataclass(frozen=True)
class PipelinePlan:
  """The first pipeline: node `s` owns stage `s`, microbatches start at 0.

  Costs and memory are those of the stages; the timeline is that of the rows in
  `schedule`.
  """

  partition: partition_lib.Partition
  costs: costs_lib.StageCosts
  schedule: instruction_lib.Schedule
  timeline: timeline_lib.Timeline
  memory: tuple[memory_lib.StageMemory, ...]


def plan_pipeline(
    profile: cost_model.Profile,
    batch: batch_split.BatchSplit,
    *,
    num_stages: int,
    schedule: str,
    balance: str,
    memory_limit_bytes: int | None,
    cuts: Sequence[int] | None = None,
) -> PipelinePlan:
  """Returns the best plan for the first pipeline of `batch`.

  Arguments and errors are those of `planner.make_plan`.
  """
  in_flight = memory_lib.in_flight_bounds(
      schedule=schedule,
      num_stages=num_stages,
      num_microbatches=batch.num_microbatches,
  )
  num_gradients = memory_lib.count_gradients(
      num_shares=batch.num_shares, num_pipelines=batch.num_pipelines
  )
  model = memory_lib.MemoryModel(
      profile.layers, in_flight=in_flight, num_gradients=num_gradients
  )
  plan = None
  limit_bytes = memory_limit_bytes
  while True:
    try:
      partition = partition_lib.split_layers(
          profile.layers,
          num_stages=num_stages,
          memory_limit_bytes=limit_bytes,
          balance=balance,
          in_flight=in_flight,
          num_gradients=num_gradients,
          cuts=cuts,
      )
    except base.InfeasibleError:
      if plan is None:
        raise
      raise base.InfeasibleError(
          _explain(plan.memory, memory_limit_bytes)
      ) from None
    plan = _plan_rows(
        partition,
        stages.stage_costs(partition, profile, num_gradients=num_gradients),
        model,
        microbatches=batch.microbatches(0),
        in_flight=memory_lib.in_flight_limits(
            schedule, num_stages, batch.num_microbatches
        ),
    )
    if memory_limit_bytes is None:
      return plan
    stage, needed_bytes = _largest(plan.memory)
    missed_bytes = needed_bytes - memory_limit_bytes
    if missed_bytes <= 0:
      return plan
    owned = partition.layers(stage)
    bound_bytes = model.total_bytes(stage, owned.start, owned.stop)
    limit_bytes = bound_bytes - missed_bytes


def _plan_rows(
    partition: partition_lib.Partition,
    costs: costs_lib.StageCosts,
    model: memory_lib.MemoryModel,
    *,
    microbatches: Sequence[int],
    in_flight: Sequence[int] | None,
) -> PipelinePlan:
  owners = range(partition.num_stages)
  schedule = scheduler.plan_rows(
      owners=owners,
      microbatches=microbatches,
      costs=costs,
      in_flight=in_flight,
  )
  timeline = timeline_lib.play(
      schedule, owners=owners, microbatches=microbatches, costs=costs
  )
  memory = []
  for stage in owners:
    owned = partition.layers(stage)
    bound = model.stage_memory(stage, owned.start, owned.stop)
    queued_bytes = max(0, timeline.peak_bytes[stage] - bound.total_bytes)
    memory.append(
        dataclasses.replace(
            bound, transfer_bytes=bound.transfer_bytes + queued_bytes
        )
    )
  return PipelinePlan(partition, costs, schedule, timeline, tuple(memory))


def _largest(memory: Sequence[memory_lib.StageMemory]) -> tuple[int, int]:
  """Returns the stage that needs most, and its bytes."""
  needs = [m.total_bytes for m in memory]
  return needs.index(max(needs)), max(needs)


def _explain(memory: Sequence[memory_lib.StageMemory], limit_bytes: int) -> str:
  stage, needed_bytes = _largest(memory)
  mib = memory_lib.format_mib
  return (
      f"Splits into {len(memory)} stages fit in {mib(limit_bytes)} MiB per "
      f"device, but their rows do not: in the last one tried, stage {stage} "
      f"needs {mib(needed_bytes)} MiB, which is "
      f"{mib(needed_bytes - limit_bytes)} MiB too much; "
      f"{mib(memory[stage].transfer_bytes)} MiB of it are activations and "
      "gradients that wait for a neighbour. Use more stages, smaller "
      "microbatches or fewer of them in flight."
  )
