"""Places redundant forward passes, and computes their cost and coverage.

A redundant forward pass leaves residuals on the shadow of a stage, which need
not run it again after a death. It costs time unless it fits into a wait:

  none     no replicas, so a death ends the step of the pipeline
  lazy     replicas, but no redundant forward pass
  bubble   only in waits that are predicted to be long enough, with a margin
  budget   the best coverage for which the step lengthens by at most a budget
  eager    every microbatch, with the least overhead, or about a tenth more if
           the coverage is better

`bubble` is the schedule of `lazy` with passes put into waits. `budget` and
`eager` take the best of several schedules: redundant forward passes of the
first few microbatches run at once, more fill waits, and the rest is at the ends
of rows. Early microbatches count most: their residuals exist for longer.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import math
from typing import Any

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    failover,
    instruction as instruction_lib,
    lines as lines_lib,
    scheduler,
    timeline as timeline_lib,
    waits,
)

Op = instruction_lib.Op
Schedule = instruction_lib.Schedule
StageCosts = costs_lib.StageCosts

MODES = ("none", "lazy", "bubble", "budget", "eager")

# Number of schedules compared; and the allowed excess of an overhead over the
# least one for better coverage, as a fraction of the step and of itself.
_NUM_CHOICES = 8
_NEAR = 0.01
_NEAR_FRACTION = 0.1
_TINY = 1e-6  # Relative error bound of sums of times.


@dataclasses.dataclass(frozen=True)
class RedundancyPlan:
  """A schedule with redundant forward passes.

  Attributes:
    mode: One of `MODES`.
    overhead: Lengthening of the step by these passes, as a fraction.
    coverage: See `find_coverage`.
  """

  mode: str
  schedule: Schedule
  timeline: timeline_lib.Timeline
  lazy: timeline_lib.Timeline
  overhead: float
  coverage: float


def plan_redundancy(
    mode: str,
    *,
    roles: failover.Roles,
    microbatches: Sequence[int],
    costs: StageCosts,
    in_flight: Sequence[int] | None,
    margin: float = 0.0,
    budget: float = 0.0,
) -> RedundancyPlan:
  """Returns the rows of a whole step, with redundant forward passes.

  Stages without a shadow get none. In modes "bubble" and "budget" a wait must
  be longer than its passes by the fraction `margin`; in "budget" the step may
  grow by the fraction `budget`. Other arguments and errors:
  `scheduler.plan_rows`.
  """
  if mode not in MODES:
    raise ValueError(base.suggest(mode, MODES, what="mode of redundancy"))
  for name, value in (("margin", margin), ("budget", budget)):
    if not 0.0 <= value < math.inf:
      raise ValueError(f"{name} must be finite and at least 0, got {value}.")
  line = lines_lib.Line(roles.owners, microbatches, in_flight)
  planner = _Planner(mode, roles, line, costs)
  if mode in ("none", "lazy") or not roles.shadows:
    return planner.plan(*planner.lazy)
  if mode == "bubble":
    return planner.fill(planner.lazy, margin=margin)
  if mode == "budget":
    choices = planner.choices(margin=margin, overhead_limit=budget)
    affordable = [plan for plan in choices if plan.overhead <= budget + _TINY]
    return max(
        (planner.fill(planner.lazy, margin=margin), *affordable), key=lambda plan: plan.coverage
    )
  choices = tuple(planner.choices(margin=0.0, overhead_limit=math.inf))
  least = min(plan.overhead for plan in choices)
  near = least + _NEAR_FRACTION * abs(least) + _NEAR
  return max((plan for plan in choices if plan.overhead <= near), key=lambda plan: plan.coverage)


def find_coverage(timeline: timeline_lib.Timeline) -> float:
  """Returns the fraction of lost forward passes that need not be repeated.

  A death is equally likely at all times of `timeline` and on all nodes. The
  forward passes of the victim's stages are lost, since its shadow owes all
  backward passes; those that the shadow has run redundantly are covered. The
  result is the quotient of expected numbers: 0 without redundant forward
  passes, 1 if each were done as early as the original.
  """
  done_ms: dict[Op, dict[tuple[base.StageId, int], float]] = {
      Op.FORWARD: {},
      Op.REDUNDANT_FORWARD: {},
  }
  for slot in timeline.slots:
    i = slot.instruction
    if i.op in done_ms:
      done_ms[i.op].setdefault((i.stage, i.microbatch), slot.end_ms)
  redundant_ms = done_ms[Op.REDUNDANT_FORWARD]
  lost_ms = kept_ms = 0.0
  for key, at_ms in done_ms[Op.FORWARD].items():
    lost_ms += timeline.span_ms - at_ms
    if key in redundant_ms:
      kept_ms += timeline.span_ms - max(at_ms, redundant_ms[key])
  return kept_ms / lost_ms if lost_ms else 0.0


def kept_bytes(schedule: Schedule, costs: StageCosts) -> dict[base.NodeId, int]:
  """Returns the bytes that each node keeps for a failover until the commit.

  These are activations and gradients that it sends, and residuals and outputs
  of its redundant forward passes.
  """
  kept = {}
  for node, row in schedule.rows.items():
    kept[node] = 0
    for i in row:
      if i.is_send or i.op is Op.REDUNDANT_FORWARD:
        kept[node] += costs.activation_bytes[i.stage]
      if i.op is Op.REDUNDANT_FORWARD:
        kept[node] += costs.residual_bytes[i.stage]
  return kept


@dataclasses.dataclass(frozen=True)
class _Planner:
  mode: str
  roles: failover.Roles
  line: lines_lib.Line
  costs: StageCosts

  @functools.cached_property
  def lazy(self) -> scheduler.TimedRows:
    return self._begin(0)

  def choices(self, *, margin: float, overhead_limit: float) -> Iterator[RedundancyPlan]:
    """Yields plans that run ever more passes as early as possible.

    The others fill waits, up to the limit.
    """
    limit_ms = self.lazy.timeline.span_ms * (1.0 + overhead_limit)
    most = len(self.line.microbatches)
    for count in sorted({k * most // _NUM_CHOICES for k in range(_NUM_CHOICES + 1)}):
      begun = self._begin(count) if count else self.lazy
      yield self.fill(begun, margin=margin, until_ms=limit_ms)

  def fill(self, begun: scheduler.TimedRows, **limits: Any) -> RedundancyPlan:
    filled = waits.fill_waits(
        *begun,
        shadows=self.roles.shadows,
        microbatches=self.line.microbatches,
        costs=self.costs,
        **limits,
    )
    timeline = timeline_lib.play(filled, [self.line], costs=self.costs)
    return self.plan(filled, timeline)

  def plan(self, schedule: Schedule, timeline: timeline_lib.Timeline) -> RedundancyPlan:
    least_ms = self.lazy.timeline.span_ms
    return RedundancyPlan(
        mode=self.mode,
        schedule=schedule,
        timeline=timeline,
        lazy=self.lazy.timeline,
        overhead=timeline.span_ms / least_ms - 1.0 if least_ms else 0.0,
        coverage=find_coverage(timeline),
    )

  def _begin(self, count: int) -> scheduler.TimedRows:
    """Plays rows that run the passes of the first microbatches at once."""
    return scheduler.play(
        [self.line],
        costs=self.costs,
        shadows=self.roles.shadows,
        redundant=self.line.microbatches[:count],
    )
