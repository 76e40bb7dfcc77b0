r"""Shows what a config comes to: partition, memory, rows, predicted step time.

python -m launch.plan --config=configs/quickstart.py
python -m launch.plan --config=configs/default.py --trace=plan.json

Runs nothing on a device. With `config.plan.profile` the plan is made from
measured costs (see `launch.profile`), else from XLA's count of operations.
"""

from typing import Any

from absl import flags

from bamboo_jax.plan import render
from bamboo_jax.schedule import render as grid_lib
from launch import cli
from launch import config_flag

_CONFIG = config_flag.define("configs/default.py", "What to plan.")
_TRACE = flags.DEFINE_string(
    "trace", None, "Write the plan as a Chrome trace, for Perfetto."
)


def main() -> None:
  """Prints the plan."""
  if _TRACE.value:
    cli.check_folder(_TRACE.value)
  from bamboo_jax.metrics import chrome_trace
  from bamboo_jax.train.record import step_slots
  from bamboo_jax.train.setup import build

  config = _CONFIG.value
  task = build.make_task(config)
  profile = build.make_profile(config, task)
  is_spmd = config.pipeline.executor == "spmd"
  timeline = (_show_ticks if is_spmd else _show_rows)(config, task, profile)
  if _TRACE.value:
    planned = step_slots.planned_slots([timeline])
    step = chrome_trace.TracedStep(0, 0.0, planned, measured=())
    chrome_trace.write(_TRACE.value, [step])
    print(f"trace: {_TRACE.value}")


def _show_rows(config: Any, unused_task: Any, profile: Any) -> Any:
  """Prints the plan of rows; returns the timeline of pipeline 0."""
  from bamboo_jax.train.setup import build
  from bamboo_jax.train.setup import build_recovery

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


def _show_ticks(config: Any, task: Any, profile: Any) -> Any:
  """Prints the plan of a program; returns the timeline of pipeline 0."""
  from bamboo_jax.train.setup import build
  from bamboo_jax.train.setup import build_program

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


if __name__ == "__main__":
  cli.run(main)
