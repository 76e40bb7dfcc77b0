"""Plans a step: from the costs of layers to rows, memory and predicted time.

Every pipeline gets the same partition. Nodes are numbered pipeline by pipeline,
so that stage `s` of pipeline `d` is on node `d * num_stages + s`.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import (
    batch_split,
    cost_model,
    memory as memory_lib,
    partition as partition_lib,
)
from bamboo_jax.plan.times import step_time as step_time_lib
from bamboo_jax.schedule import (
    costs as costs_lib,
    lines as lines_lib,
    simulate as simulate_lib,
    timeline as timeline_lib,
)


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
    residuals: Where residuals of redundant passes wait: "device" or "host".
  """

  profile: cost_model.Profile
  partition: partition_lib.Partition
  batch: batch_split.BatchSplit
  schedule_name: str
  memory_limit_bytes: int | None
  costs: costs_lib.StageCosts
  memory: tuple[memory_lib.NodeMemory, ...]
  timeline: timeline_lib.Timeline
  step_time: step_time_lib.StepTime
  worst_memory: tuple[memory_lib.Duty, memory_lib.NodeMemory] | None = None
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


_UNPROTECTED = config_lib.RedundancySection()


def make_plan(
    profile: cost_model.Profile,
    pipeline: config_lib.PipelineSection,
    *,
    memory_limit_bytes: int | None = None,
    protection: config_lib.RedundancySection = _UNPROTECTED,
    reroutes: bool = False,
    is_remote: bool = False,
    cuts: Sequence[int] | None = None,
) -> Plan:
  """Returns the best plan for equal nodes.

  Args:
    profile: Costs of the layers on one node, for microbatches of this size.
    memory_limit_bytes: Memory of one device; None: no limit.
    protection: Options of replicas. With replicas the limit holds
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
  num_stages, num_pipelines = pipeline.num_stages, pipeline.num_pipelines
  sizes = pipeline.num_microbatches, pipeline.microbatch_size
  batch = batch_split.BatchSplit(num_pipelines, pipeline.num_shares or num_pipelines, *sizes)
  model = memory_lib.MemoryModel(
      profile.layers,
      in_flight=lines_lib.in_flight_bounds(num_stages, batch.num_microbatches, pipeline.schedule),
      upkeep=memory_lib.Upkeep(
          num_accumulators=batch.shares_per_pipeline,
          num_rerouted=batch.shares_per_pipeline * (reroutes and num_pipelines > 1),
          num_shares=batch.num_shares,
          protection=protection,
          is_remote=is_remote,
      ),
      ties=profile.ties,
      cuts=cuts,
  )
  partition = partition_lib.find_split(model, memory_limit_bytes)
  needs = model.find_needs(partition.bounds)
  now, after = [need for _, need in needs[:num_stages]], needs[num_stages:]
  worst = max(after, key=lambda need: need[1].total_bytes, default=None)
  free_bytes, most = None, worst[1].total_bytes if worst else 0  # Also after a death.
  if memory_limit_bytes is not None:
    free_bytes = [memory_limit_bytes - max(need.total_bytes, most) for need in now]
  costs, place = profile.stage_costs(partition.bounds).place_residuals(
      profile.host_bytes_per_ms, num_microbatches=batch.num_microbatches, free_bytes=free_bytes
  )
  limits = lines_lib.in_flight_limits(num_stages, pipeline.schedule)
  line = lines_lib.Line(base.nodes(num_stages), batch.microbatches(0), limits)
  timeline = simulate_lib.simulate([line], costs=costs)
  return Plan(
      profile=profile,
      partition=partition,
      batch=batch,
      schedule_name=pipeline.schedule,
      memory_limit_bytes=memory_limit_bytes,
      costs=costs,
      memory=tuple(now),
      timeline=timeline,
      step_time=step_time_lib.predict_step_time(
          profile,
          partition,
          num_pipelines=num_pipelines,
          num_shares=batch.num_shares,
          compute_ms=timeline.span_ms,
          redundant=protection,
      ),
      worst_memory=worst,
      residuals=place,
  )
