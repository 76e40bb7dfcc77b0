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
  from bamboo_jax.plan import render
  from bamboo_jax.schedule import render as grid
  from bamboo_jax.train import build
  from bamboo_jax.train import hooks

  config = _CONFIG.value
  task = build.make_task(config)
  plan = build.make_plan(config, build.make_profile(config, task))
  print(render.render_plan(plan))
  print()
  rows = build.make_rows(config, plan)
  roles = rows.roles(0)
  redundant = rows.whole(0, roles)
  print("rows of pipeline 0:")
  print(grid.render_grid(redundant.timeline))
  if redundant.mode != "none":
    print(_render_redundancy(config, plan, redundant, roles))
  if _TRACE.value:
    writer = chrome_trace.TraceWriter(_TRACE.value, max_steps=1)
    writer.add_step(
        0,
        start_ms=0.0,
        planned=hooks.planned_slots([redundant.timeline]),
        measured=(),
    )
    writer.write()
    print(f"trace: {_TRACE.value}")


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
