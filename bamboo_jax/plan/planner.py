"""Plans a step: from the costs of layers to rows, memory and predicted time.

Every pipeline gets the same partition. Nodes are numbered pipeline by pipeline,
so that stage `s` of pipeline `d` is on node `d * num_stages + s`.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import (
    batch_split,
    cost_model,
    memory as memory_lib,
    partition as partition_lib,
    pipelines as pipelines_lib,
    predictor as predictor_lib,
    rows as rows_lib,
)
from bamboo_jax.schedule import (
    checker,
    costs as costs_lib,
    failover,
    lines as lines_lib,
    redundancy,
    simulate as simulate_lib,
    timeline as timeline_lib,
)

Line = lines_lib.Line


@dataclasses.dataclass(frozen=True)
class Plan:
  """Decisions and predictions on a step, before it runs; plans the rows of other steps.

  Attributes:
    segments: Units of instructions, the stages unless `cut` says otherwise; `costs`
      are theirs.
    schedule_name: "1f1b" or "gpipe".
    memory_limit_bytes: Memory of one device; None: no limit.
    memory: Memory of each node of a pipeline.
    timeline: Rows of the first pipeline, without redundant passes.
    worst_memory: Duty and memory of the node with the largest need after any
      single death; None without replicas.
    residuals: Where residuals of redundant passes wait: "device" or "host".
  """

  profile: cost_model.Profile
  redundant: config_lib.RedundancySection
  partition: partition_lib.Partition
  segments: partition_lib.Partition
  batch: batch_split.BatchSplit
  schedule_name: str
  memory_limit_bytes: int | None
  costs: costs_lib.StageCosts
  memory: tuple[memory_lib.NodeMemory, ...]
  timeline: timeline_lib.Timeline
  step_time: predictor_lib.StepTime
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

  def cut(self, partitions: Sequence[partition_lib.Partition]) -> "Plan":
    """Returns the plan with instructions by segment, which no stage of `partitions` cuts."""
    bounds = {bound for p in (self.partition, *partitions) for bound in p.bounds}
    segments = partition_lib.Partition(tuple(sorted(bounds)))
    if segments == self.segments:
      return self
    costs = self.profile.stage_costs(segments.bounds)
    return dataclasses.replace(self, segments=segments, costs=costs)

  def pipeline(self, pipeline: int) -> pipelines_lib.Pipeline:
    """Returns pipeline `pipeline` of the plan, with its initial roles."""
    has_replicas = self.redundant.has_replicas
    roles = failover.Roles.initial(self.owners[pipeline], has_replicas=has_replicas)
    return pipelines_lib.Pipeline(self.partition, roles)

  def whole(
      self, line: Line, shadows: Mapping[base.StageId, base.NodeId]
  ) -> redundancy.PlannedRows:
    """Returns the rows of a whole step of one pipeline; `shadows` are by segment."""
    return rows_lib.plan_rows(self.redundant, line, shadows, costs=self.costs)

  def first(self) -> redundancy.PlannedRows:
    """Returns the rows of pipeline 0."""
    limits, microbatches = self._in_flight(self.partition), self.batch.microbatches(0)
    roles = self.pipeline(0).by_segment(self.segments)
    return self.whole(Line(roles.owners, microbatches, limits), roles.shadows)

  def lines(
      self,
      ways: Sequence[tuple[int, Sequence[base.NodeId], Sequence[base.ShareId]]],
      partitions: Sequence[partition_lib.Partition],
  ) -> list[Line]:
    """Returns the `schedule.lines` of a step.

    Args:
      ways: For each line: pipeline, owner of each segment, and shares.
      partitions: Stages of each pipeline.
    """
    limits = [*map(self._in_flight, partitions)]
    return [
        Line(owners, self.batch.microbatches_of(shares), limits[pipeline], pipeline)
        for pipeline, owners, shares in ways
    ]

  def play(
      self, lines: Sequence[Line], holdings: lines_lib.Holdings | None = None
  ) -> timeline_lib.Timeline:
    """Returns the timeline of all lines, without redundant forward passes.

    With `holdings`, of the rest of the step. Raises `base.InfeasibleError` if
    it cannot be finished.
    """
    timeline = simulate_lib.simulate(lines, costs=self.costs, holdings=holdings)
    checker.check(timeline.instructions, lines, holdings)  # A wrong row costs a run.
    return timeline

  def _in_flight(self, partition: partition_lib.Partition) -> Sequence[int] | None:
    limits = lines_lib.in_flight_limits(partition.num_stages, self.schedule_name)
    if limits is None:
      return None
    # A segment has the bound of its stage.
    return tuple(limits[partition.stage_of(first)] for first in self.segments.bounds[:-1])


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
  costs, place = profile.place_residuals(
      partition.bounds, num_microbatches=batch.num_microbatches, free_bytes=free_bytes
  )
  limits = lines_lib.in_flight_limits(num_stages, pipeline.schedule)
  line = lines_lib.Line(base.nodes(num_stages), batch.microbatches(0), limits)
  timeline = simulate_lib.simulate([line], costs=costs)
  predictor = predictor_lib.Predictor(
      profile,
      num_microbatches=batch.total_microbatches,
      num_shares=batch.num_shares,
      redundant=protection,
  )
  others = predictor.other_phases(partition, num_pipelines=num_pipelines)
  return Plan(
      profile=profile,
      redundant=protection,
      partition=partition,
      segments=partition,
      batch=batch,
      schedule_name=pipeline.schedule,
      memory_limit_bytes=memory_limit_bytes,
      costs=costs,
      memory=tuple(now),
      timeline=timeline,
      step_time=dataclasses.replace(others, compute_ms=timeline.span_ms),
      worst_memory=worst,
      residuals=place,
  )
