"""The rows of a step: at its start, and of its rest after a failure.

`plan_rows` makes all of them, to be run, predicted or simulated.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import partition as partition_lib, pipelines as pipelines_lib, planner
from bamboo_jax.schedule import (
    checker,
    costs as costs_lib,
    failover,
    lines as lines_lib,
    redundancy,
    rule as rule_lib,
    simulate as simulate_lib,
    timeline as timeline_lib,
)

StageCosts = costs_lib.StageCosts
Line = lines_lib.Line


_OVERRUN = 1.6  # How much too late a pass of mode "eager" may end, by its own time.


def plan_rows(
    redundant: config_lib.RedundancySection,
    line: Line,
    shadows: Mapping[base.StageId, base.NodeId],
    *,
    costs: StageCosts,
    overrun: float = _OVERRUN,
) -> redundancy.PlannedRows:
  """Returns the rows of a whole step of one pipeline."""
  bare = simulate_lib.simulate([line], costs=costs)
  rules = {}
  if shadows and redundant.runs_ahead:
    rules = rule_lib.make_rules(
        bare,
        shadows=shadows,
        costs=costs,
        late=overrun if redundant.mode == "eager" else -redundant.margin,
        late_ms=redundant.budget * bare.span_ms if redundant.mode == "budget" else 0.0,
    )
  return redundancy.PlannedRows(bare, rules, costs)


@dataclasses.dataclass(frozen=True)
class RowPlanner:
  """Plans the rows of one pipeline at a time; pure.

  Attributes:
    segments: Units of instructions; None: the stages of the plan.
  """

  plan: planner.Plan
  redundant: config_lib.RedundancySection
  segments: partition_lib.Partition | None = None

  @functools.cached_property
  def costs(self) -> StageCosts:
    """Times and sizes of each segment, for one microbatch."""
    if self.segments is None or self.segments == self.plan.partition:
      return self.plan.costs
    return self.plan.profile.stage_costs(self.segments.bounds)

  def pipeline(self, pipeline: int) -> pipelines_lib.Pipeline:
    """Returns pipeline `pipeline` of the plan, with its initial roles."""
    owners, has_replicas = self.plan.owners[pipeline], self.redundant.has_replicas
    roles = failover.Roles.initial(owners, has_replicas=has_replicas)
    return pipelines_lib.Pipeline(self.plan.partition, roles)

  def whole(
      self, line: Line, shadows: Mapping[base.StageId, base.NodeId]
  ) -> redundancy.PlannedRows:
    """Returns the rows of a whole step of one pipeline; `shadows` are by segment."""
    return plan_rows(self.redundant, line, shadows, costs=self.costs)

  def first(self) -> redundancy.PlannedRows:
    """Returns the rows of pipeline 0 of the plan."""
    limits, microbatches = self._in_flight(self.plan.partition), self.plan.batch.microbatches(0)
    roles = self.pipeline(0).by_segment(self.segments or self.plan.partition)
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
    batch, limits = self.plan.batch, [*map(self._in_flight, partitions)]
    return [
        Line(owners, batch.microbatches_of(shares), limits[pipeline], pipeline)
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
    in_flight = lines_lib.in_flight_limits(partition.num_stages, self.plan.schedule_name)
    if in_flight and self.segments:  # A segment has the bound of its stage.
      firsts = self.segments.bounds[:-1]
      in_flight = [in_flight[partition.stage_of(first)] for first in firsts]
    return in_flight
