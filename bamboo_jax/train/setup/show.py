"""The plan of a config as text, for either executor."""

import ml_collections

from bamboo_jax.plan import cost_model
from bamboo_jax.plan import render
from bamboo_jax.schedule import render as grid_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train.setup import build
from bamboo_jax.train.setup import build_program
from bamboo_jax.train.setup import build_recovery


def show_plan(config: ml_collections.ConfigDict) -> timeline_lib.Timeline:
  """Prints the plan of a config; returns the timeline of pipeline 0."""
  task = build.make_task(config)
  profile = build.make_profile(config, task)
  if config.pipeline.executor == "spmd":
    return _show_ticks(config, task, profile)
  return _show_rows(config, profile)


def _show_rows(
    config: ml_collections.ConfigDict, profile: cost_model.Profile
) -> timeline_lib.Timeline:
  templates = build_recovery.make_templates(config, profile)
  for template in templates.templates if templates else ():
    print(
        f"template of {template.num_nodes} nodes: "
        f"layers {template.partition.bounds}, up to "
        f"{max(template.memory_bytes) / 2**20:.2f} MiB without replicas"
    )
  num_stages = templates and templates.min_nodes
  plan = build.make_plan(config, profile, num_stages=num_stages)
  print(render.render_plan(plan))
  rows = build.make_rows(config, plan)
  roles = rows.roles(0)
  redundant = rows.whole(0, roles)
  print(f"\nrows of pipeline 0:\n{grid_lib.render_grid(redundant.timeline)}")
  if redundant.mode != "none":
    refresh = config.redundancy.refresh
    print(render.render_redundancy(plan, redundant, roles, refresh=refresh))
  return redundant.timeline


def _show_ticks(
    config: ml_collections.ConfigDict,
    task: build.Task,
    profile: cost_model.Profile,
) -> timeline_lib.Timeline:
  cuts = build_program.find_cuts(config, task)
  plan = build.make_plan(config, profile, cuts=cuts)
  program = build_program.make_program(config, task, plan)
  print(render.render_plan(program.plan))
  timeline = program.plan.timeline
  print(f"\nticks of pipeline 0:\n{grid_lib.render_grid(timeline)}")
  if program.order != config.pipeline.ticks:
    print(f"ticks are {program.order!r}, since others exceed the memory limit")
  print(render.render_ticks(program))
  return timeline
