"""Predictions of the plan for each mode: time of a step, coverage, pauses.

Also for longer pipelines with the same work per stage: the layers between the
first and the last are repeated, so that every stage has about as many layers as
in the measured pipeline, and microbatches grow with the stages.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import statistics
from typing import Any

from bamboo_jax import config as config_lib
from bamboo_jax.plan import planner, rows as rows_lib
from bamboo_jax.plan.times import pauses as pauses_lib
from bamboo_jax.schedule import failover, lines as lines_lib, redundancy

SIZES = (4, 6, 8, 12, 16)  # Stages of longer pipelines.
_NUM_TIMES = 6  # Times of death in a step.


@dataclasses.dataclass(frozen=True)
class ModePlan:
  """The rows of one mode on pipeline 0; `whole` are those of a step."""

  rows: rows_lib.RowPlanner
  roles: failover.Roles
  whole: redundancy.PlannedRows

  @property
  def filling(self) -> redundancy.StepFilling | None:
    """How waits are filled as they occur; None in modes without."""
    return redundancy.StepFilling([self.whole]) if self.whole.rules else None


def plan_mode(plan: planner.Plan, options: config_lib.RedundancySection, mode: str) -> ModePlan:
  """Returns the plan of a mode; all other `options` are shared."""
  rows = rows_lib.RowPlanner(plan, dataclasses.replace(options, mode=mode))
  roles = rows.roles(0)
  return ModePlan(rows, roles, rows.whole(0, roles))


def predict_step_ms(plan: planner.Plan, mode: ModePlan, *, refresh_ms: float) -> float:
  """Returns the time of a step without clipping, with a full refresh."""
  roles = mode.roles
  updates_ms = [
      sum(
          plan.profile.layers[layer].update_ms
          for stage in (*roles.stages_of(node), *roles.replicas_of(node))
          for layer in plan.partition.layers(stage)
      )
      for node in roles.nodes
  ]
  refresh_ms = refresh_ms if roles.shadows else 0.0
  return mode.whole.timeline.span_ms + refresh_ms + max(updates_ms)


def lengthen(plan: planner.Plan, num_stages: int, *, is_even: bool = False) -> planner.Plan:
  """Returns the plan of more stages; even ones have as many repeated layers."""
  first, *middle, last = plan.profile.layers
  count = len(middle) * num_stages // plan.num_stages
  repeated = [
      dataclasses.replace(middle[k % len(middle)], name=f"middle_{k:03d}") for k in range(count)
  ]
  num_microbatches, size = plan.batch.num_microbatches * num_stages, count // num_stages
  return planner.make_plan(
      dataclasses.replace(plan.profile, layers=(first, *repeated, last), ties=()),
      num_stages=num_stages,
      num_pipelines=1,
      num_microbatches=num_microbatches // plan.num_stages,
      microbatch_size=plan.batch.microbatch_size,
      schedule=plan.schedule_name,
      cuts=range(1 + size, count + 1, size) if is_even else None,
  )


def predict_sizes(
    plan: planner.Plan,
    modes: Sequence[str],
    options: config_lib.RedundancySection,
    *,
    sizes: Sequence[int] = SIZES,
) -> Iterator[dict[str, Any]]:
  """Yields a row for each number of stages and mode; `modes` include "lazy".

  `compute_ms` is the time of the rows, `overhead` its increase by redundant
  forward passes, `coverage` the share of lost forward passes that need not be
  run again. `pause` is the delay of a step by a death, as a fraction of a step
  of mode "lazy": the mean over nodes and times, None without replicas.
  """
  for num_stages in sizes:
    large = lengthen(plan, num_stages)
    made = {mode: plan_mode(large, options, mode) for mode in modes}
    lazy_ms = made["lazy"].whole.timeline.span_ms
    for mode, found in made.items():
      pause_ms = _mean_pause_ms(large, found) if found.roles.shadows else None
      yield {
          "num_stages": num_stages,
          "num_microbatches": large.batch.num_microbatches,
          "mode": mode,
          "compute_ms": found.whole.timeline.span_ms,
          "overhead": found.whole.effect.overhead,
          "coverage": found.whole.effect.coverage,
          "pause": pause_ms and pause_ms / lazy_ms,
      }


def _mean_pause_ms(plan: planner.Plan, mode: ModePlan) -> float:
  pauses_ms = pauses_lib.predict_pauses(
      mode.whole.timeline,
      roles=mode.roles,
      microbatches=plan.batch.microbatches(0),
      costs=plan.costs,
      in_flight=lines_lib.in_flight_limits(plan.num_stages, plan.schedule_name),
      num_times=_NUM_TIMES,
  )
  return statistics.mean(pauses_ms)
