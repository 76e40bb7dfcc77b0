"""The plan of a config as text, for either executor."""

import dataclasses

from bamboo_jax import config as config_lib
from bamboo_jax.plan import cost_model, planner, render, rows as rows_lib
from bamboo_jax.schedule import render as grid_lib, timeline as timeline_lib
from bamboo_jax.training.setup import build, executors, rental, sizes


@dataclasses.dataclass(frozen=True, repr=False)
class PlannedRun:
  """The plan of a run; prints as the text of `bamboo plan`.

  Attributes:
    plan: Partition, batch, memory and predicted times.
    timeline: A step of pipeline 0, with redundant passes.
    text: Output of `bamboo plan`.
    details: What `--verbose` adds: the whole plan, if `config.plan.machine` is
      set; else "", as `text` has it.
  """

  plan: planner.Plan
  timeline: timeline_lib.Timeline
  text: str
  details: str = ""

  def __repr__(self) -> str:
    return self.text


def make_plan(config: config_lib.Config) -> PlannedRun:
  """Returns the plan of a config; `ValueError` if it does not fit together."""
  task = build.make_task(config, needs_data=False)
  profile = build.make_profile(config, task)
  head = f"{sizes.describe_batch(config)}\n"
  if config.plan.machine is not None:  # Fails with a better message.
    head += rental.render(rental.forecast(config, task))
  if executors.is_program(config):
    planned = _plan_ticks(config, task, profile)
  else:
    planned = _plan_rows(config, profile)
  if config.plan.machine is None:
    return dataclasses.replace(planned, text=head + planned.text)
  return dataclasses.replace(planned, text=head, details=planned.text)


def _plan_rows(config: config_lib.Config, profile: cost_model.Profile) -> PlannedRun:
  templates = build.make_templates(config, profile)
  lines = [
      f"template of {partition.num_stages} nodes: layers {partition.bounds}, up to "
      f"{max(memory_bytes) / 2**20:.2f} MiB without replicas"
      for partition, memory_bytes in templates or ()
  ]
  num_stages = templates[0].partition.num_stages if templates else None
  plan = build.make_plan(config, profile, num_stages=num_stages)
  rows = rows_lib.RowPlanner(plan, config.redundancy)
  redundant = rows.first()
  lines.append(render.render_plan(_with_rows(plan, redundant.timeline)))
  grid = grid_lib.render_grid(redundant.timeline)
  lines.append(f"\nrows of pipeline 0:\n{grid}")
  if (mode := config.redundancy.mode) != "none":
    refresh = config.redundancy.refresh
    lines.append(render.render_redundancy(plan, redundant, mode=mode, refresh=refresh))
  return PlannedRun(plan, redundant.timeline, "\n".join(lines))


def _with_rows(plan: planner.Plan, timeline: timeline_lib.Timeline) -> planner.Plan:
  """Returns a plan whose step has these rows, with redundant passes."""
  more_ms = timeline.span_ms - plan.timeline.span_ms
  step_time = dataclasses.replace(plan.step_time, compute_ms=plan.step_time.compute_ms + more_ms)
  return dataclasses.replace(plan, timeline=timeline, step_time=step_time)


def _plan_ticks(
    config: config_lib.Config, task: build.Task, profile: cost_model.Profile
) -> PlannedRun:
  cuts = executors.find_cuts(config, task)
  plan = build.make_plan(config, profile, cuts=cuts)
  program = executors.plan_program(config, task, plan)
  lines = [render.render_plan(program.plan)]
  timeline = program.plan.timeline
  lines.append(f"\nticks of pipeline 0:\n{grid_lib.render_grid(timeline)}")
  lines.append(program.describe())
  return PlannedRun(program.plan, timeline, "\n".join(lines))
