r"""Shows what a config comes to: partition, memory, rows, predicted step time.

python -m launch.plan --config=configs/quickstart.py
python -m launch.plan --config=configs/default.py --trace=plan.json

Runs nothing on a device. With `config.plan.profile` the plan is made from
measured costs (see `launch.profile`), else from XLA's count of operations.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from launch import cli
from launch import config_flag

_CONFIG = config_flag.define("configs/default.py", "What to plan.")
_MIB = 2**20
_TRACE = flags.DEFINE_string(
    "trace", None, "Write the plan as a Chrome trace, for Perfetto."
)


def main(argv: Sequence[str]) -> None:
  """Prints the plan."""
  cli.check_no_arguments(argv)
  if _TRACE.value:
    cli.check_folder(_TRACE.value)
  from bamboo_jax.metrics import chrome_trace
  from bamboo_jax.train import build
  from bamboo_jax.train import hooks

  config = _CONFIG.value
  task = build.make_task(config)
  profile = build.make_profile(config, task)
  show = _show_ticks if config.pipeline.executor == "spmd" else _show_rows
  timeline = show(config, task, profile)
  if _TRACE.value:
    writer = chrome_trace.TraceWriter(_TRACE.value, max_steps=1)
    writer.add_step(
        0,
        start_ms=0.0,
        planned=hooks.planned_slots([timeline]),
        measured=(),
    )
    writer.write()
    print(f"trace: {_TRACE.value}")


def _show_rows(config: Any, task: Any, profile: Any) -> Any:
  """Prints the plan of rows; returns the timeline of pipeline 0."""
  del task
  from bamboo_jax.plan import render
  from bamboo_jax.schedule import render as grid
  from bamboo_jax.train import build

  plan = build.make_plan(config, profile)
  print(render.render_plan(plan))
  rows = build.make_rows(config, plan)
  roles = rows.roles(0)
  redundant = rows.whole(0, roles)
  print("\nrows of pipeline 0:")
  print(grid.render_grid(redundant.timeline))
  if redundant.mode != "none":
    print(_render_redundancy(config, plan, redundant, roles))
  return redundant.timeline


def _show_ticks(config: Any, task: Any, profile: Any) -> Any:
  """Prints the plan of a program; returns the timeline of pipeline 0."""
  from bamboo_jax.plan import render
  from bamboo_jax.schedule import render as grid
  from bamboo_jax.train import build
  from bamboo_jax.train import build_program

  cuts = build_program.find_cuts(config, task)
  plan = build.make_plan(config, profile, cuts=cuts)
  program = build_program.make_program(config, task, plan)
  print(render.render_plan(program.plan))
  print("\nticks of pipeline 0:")
  print(grid.render_grid(program.plan.timeline))
  print(_render_statistics(program.statistics))
  return program.plan.timeline


def _render_statistics(statistics: Any) -> str:
  """Returns what ticks fill and waste."""
  s = statistics
  return (
      f"{s.num_ticks} ticks, {s.idle_slots} idle slots, {s.num_redundant} "
      f"redundant forward passes: {s.in_idle_slots} in idle slots, "
      f"{s.beside_backwards} beside backward passes, {s.elsewhere} elsewhere; "
      f"predicted overhead {100 * s.overhead:.1f} %, bubble "
      f"{100 * s.bubble:.1f} % instead of {100 * s.plain_bubble:.1f} %"
  )


def _render_redundancy(
    config: Any, plan: Any, redundant: Any, roles: Any
) -> str:
  """Returns what redundancy costs and protects, and which waits it fills."""
  from bamboo_jax.schedule import redundancy

  by_state = config.redundancy.refresh == "state"
  lines = [
      f"redundancy: {redundant.mode}, {redundant.num_redundant} redundant "
      f"forward passes, predicted overhead {100 * redundant.overhead:.1f} %, "
      f"coverage {100 * redundant.coverage:.1f} %"
  ]
  host = redundancy.kept_bytes(redundant.schedule, plan.costs)
  for stage, node in roles.shadows.items():
    memory = plan.memory[stage]
    state = memory.parameter_bytes + memory.slot_bytes
    sent = state if by_state else memory.parameter_bytes
    lines.append(
        f"node {node} holds the replica of stage {stage}: "
        f"{state / _MIB:.1f} MiB, refreshed by {sent / _MIB:.1f} MiB a step; "
        f"keeps up to {host[node] / _MIB:.1f} MiB in host memory"
    )
  return "\n".join(lines + list(map(str, redundant.filled_waits())))


if __name__ == "__main__":
  cli.run(main)
