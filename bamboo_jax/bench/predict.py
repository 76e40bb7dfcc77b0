"""Predictions of the plan for each mode: time of a step, coverage, pauses.

Also for longer pipelines with the same work per stage: the layers between the
first and the last are repeated, so that a stage of every pipeline has about as
many as one of the measured pipeline, and microbatches grow with the stages.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import statistics
from typing import Any

from bamboo_jax.plan import cost_model
from bamboo_jax.plan import planner
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.plan.memory import bounds
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import pauses as pauses_lib
from bamboo_jax.schedule import redundancy

SIZES = (4, 6, 8, 12, 16)  # Stages of longer pipelines.


@dataclasses.dataclass(frozen=True)
class ModePlan:
  """The rows of one mode on pipeline 0; `whole` are those of a step."""

  rows: rows_lib.RowPlanner
  roles: failover.Roles
  whole: redundancy.RedundancyPlan


def plan_modes(
    plan: planner.Plan,
    modes: Sequence[str],
    options: rows_lib.Redundancy,
) -> dict[str, ModePlan]:
  """Returns the plans of some modes, which share all other `options`."""
  made = {}
  for mode in modes:
    redundant = dataclasses.replace(options, mode=mode)
    rows = rows_lib.RowPlanner(plan, redundant)
    roles = rows.roles(0)
    made[mode] = ModePlan(rows, roles, rows.whole(0, roles))
  return made


def predict_step_ms(
    plan: planner.Plan, mode: ModePlan, *, refresh_ms: float
) -> float:
  """Returns the time of a step without clipping, all replicas refreshed."""
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


def deepen(
    profile: cost_model.Profile, *, num_stages: int, times_of: int
) -> cost_model.Profile:
  """Returns the profile of a model deep enough for `num_stages`."""
  first, *middle, last = profile.layers
  count = len(middle) * num_stages // times_of
  repeated = [
      dataclasses.replace(middle[k % len(middle)], name=f"middle_{k:03d}")
      for k in range(count)
  ]
  return dataclasses.replace(profile, layers=(first, *repeated, last), ties=())


def lengthen(
    plan: planner.Plan, num_stages: int, *, period: int | None = None
) -> planner.Plan:
  """Returns the plan of more stages; `period` keeps blocks of layers whole."""
  profile = deepen(
      plan.profile, num_stages=num_stages, times_of=plan.num_stages
  )
  return planner.make_plan(
      profile,
      num_stages=num_stages,
      num_pipelines=1,
      num_microbatches=plan.batch.num_microbatches
      * num_stages
      // plan.num_stages,
      microbatch_size=plan.batch.microbatch_size,
      schedule=plan.schedule_name,
      balance=plan.balance,
      cuts=period and range(1, len(profile.layers), period),
  )


def predict_sizes(
    plan: planner.Plan,
    modes: Sequence[str],
    options: rows_lib.Redundancy,
    *,
    sizes: Sequence[int] = SIZES,
    num_times: int = 6,
) -> list[dict[str, Any]]:
  """Returns a row for each number of stages and mode; `modes` include "lazy".

  `compute_ms` is the time of the rows, `overhead` how much longer that is than
  without redundant forward passes, `coverage` the share of lost forward passes
  that need not be run again. `pause` is how much longer a step with a death
  takes, as a fraction of a step of mode "lazy" without one: the mean over nodes
  and `num_times` times, None without replicas.
  """
  rows = []
  for num_stages in sizes:
    large = lengthen(plan, num_stages)
    made = plan_modes(large, modes, options)
    pauses = _mean_pauses(large, made, num_times=num_times)
    rows += [
        {
            "num_stages": num_stages,
            "num_microbatches": large.batch.num_microbatches,
            "mode": mode,
            "compute_ms": mode_plan.whole.timeline.span_ms,
            "overhead": mode_plan.whole.overhead,
            "coverage": mode_plan.whole.coverage,
            "pause": pauses.get(mode),
        }
        for mode, mode_plan in made.items()
    ]
  return rows


def _mean_pauses(
    plan: planner.Plan, made: Mapping[str, ModePlan], *, num_times: int
) -> dict[str, float]:
  """Returns the mean pause of each mode that survives deaths."""
  in_flight = bounds.in_flight_limits(
      plan.schedule_name, plan.num_stages, plan.batch.num_microbatches
  )
  step_ms = made["lazy"].whole.timeline.span_ms
  return {
      mode: statistics.mean(
          pause.longer_ms
          for pause in pauses_lib.predict_pauses(
              mode_plan.whole.timeline,
              roles=mode_plan.roles,
              microbatches=plan.batch.microbatches(0),
              costs=plan.costs,
              in_flight=in_flight,
              num_times=num_times,
          )
      )
      / step_ms
      for mode, mode_plan in made.items()
      if mode_plan.roles.shadows
  }
