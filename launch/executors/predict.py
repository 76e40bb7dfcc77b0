"""What the plan expects of both executors, also for longer pipelines."""

from collections.abc import Sequence
import dataclasses
from typing import Any

from bamboo_jax.plan import planner
from bamboo_jax.plan import program as program_lib
from bamboo_jax.train import build
from bamboo_jax.train import build_program
from launch.redundancy import predict as rows_predict


@dataclasses.dataclass(frozen=True)
class Pair:
  """Both executors, planned for the same pipeline.

  Attributes:
    plan: What they were planned from.
    rows: Modes of redundancy by name.
    programs: The same.
  """

  plan: planner.Plan
  rows: dict[str, rows_predict.ModePlan]
  programs: dict[str, program_lib.ProgramPlan]


@dataclasses.dataclass(frozen=True)
class Size:
  """What is expected of a pipeline of some size; times are those of all passes.

  Attributes:
    num_stages: Number of stages.
    num_microbatches: Microbatches of a step.
    rows_ms: Rows without redundant forward passes.
    rows_redundant_ms: Rows with all of them.
    program_ms: Ticks without redundant forward passes.
    program_redundant_ms: Ticks with all of them.
    rows_bubble: Mean share of `rows_ms` in which a node runs no pass.
    program_bubble: The same of `program_ms`.
    filled_bubble: The same of `program_redundant_ms`.
    num_ticks: Number of ticks, with redundant forward passes.
    idle_slots: Ticks of all stages in which a stage runs no pass of its own.
    num_free: Redundant forward passes that cost nothing.
    num_redundant: All redundant forward passes.
  """

  num_stages: int
  num_microbatches: int
  rows_ms: float
  rows_redundant_ms: float
  program_ms: float
  program_redundant_ms: float
  rows_bubble: float
  program_bubble: float
  filled_bubble: float
  num_ticks: int
  idle_slots: int
  num_free: int
  num_redundant: int


def plan_pair(
    config: Any,
    task: build.Task,
    plan: planner.Plan,
    *,
    modes: Sequence[str] = ("lazy", "bubble", "eager"),
) -> Pair:
  """Returns both executors with some modes of redundancy.

  Args:
    config: Of the comparison.
    task: Model and data.
    plan: Its stages are made of whole blocks.
    modes: Some of `redundancy.MODES`.
  """
  options = config.redundancy
  programs = {}
  for mode in modes:
    changed = config.copy_and_resolve_references()
    changed.redundancy.mode = mode
    programs[mode] = build_program.make_program(changed, task, plan)
  rows = rows_predict.plan_modes(
      plan, modes, margin=options.margin, budget=options.budget
  )
  return Pair(plan, rows, programs)


def plan_size(
    config: Any, task: build.Task, plan: planner.Plan, num_stages: int
) -> Pair:
  """Returns both executors for more stages with the same work per stage.

  See `redundancy.predict` for how the pipeline grows.
  """
  profile = rows_predict.deepen(
      plan.profile, num_stages=num_stages, times_of=plan.num_stages
  )
  period = build_program.block_period(task)
  large = planner.make_plan(
      profile,
      num_stages=num_stages,
      num_pipelines=1,
      num_microbatches=plan.batch.num_microbatches
      * num_stages
      // plan.num_stages,
      microbatch_size=plan.batch.microbatch_size,
      schedule=plan.schedule_name,
      balance=plan.balance,
      cuts=range(1, len(profile.layers), period),
  )
  return plan_pair(config, task, large)


def summarise(pair: Pair) -> Size:
  """Returns what is expected of both executors of a pipeline."""
  lazy, eager = pair.rows["lazy"].whole, pair.rows["eager"].whole
  statistics = pair.programs["eager"].statistics
  return Size(
      num_stages=pair.plan.num_stages,
      num_microbatches=pair.plan.batch.num_microbatches,
      rows_ms=lazy.timeline.span_ms,
      rows_redundant_ms=eager.timeline.span_ms,
      program_ms=statistics.plain_span_ms,
      program_redundant_ms=statistics.span_ms,
      rows_bubble=lazy.timeline.mean_bubble,
      program_bubble=statistics.plain_bubble,
      filled_bubble=statistics.bubble,
      num_ticks=statistics.num_ticks,
      idle_slots=statistics.idle_slots,
      num_free=pair.programs["bubble"].statistics.num_redundant,
      num_redundant=statistics.num_redundant,
  )


def predict_step_ms(
    pair: Pair, executor: str, mode: str, *, refresh_ms: float
) -> float:
  """Returns the time of a step without clipping.

  Args:
    pair: The plans.
    executor: "rows" or "spmd".
    mode: Mode of redundancy.
    refresh_ms: Time to refresh all replicas by rows, if there are any. A
      program sends as much.
  """
  rows = pair.rows[mode]
  step_ms = rows_predict.predict_step_ms(pair.plan, rows, refresh_ms=refresh_ms)
  if executor == "rows":
    return step_ms
  span_ms = pair.programs[mode].statistics.span_ms
  return step_ms - rows.whole.timeline.span_ms + span_ms
