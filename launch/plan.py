r"""Shows what a config comes to: partition, memory, rows, predicted step time.

python -m launch.plan --config=configs/quickstart.py
python -m launch.plan --config=configs/default.py --trace=plan.json

Runs nothing on a device. With `config.plan.profile` the plan is made from
measured costs (see `launch.profile`), else from XLA's count of operations.
"""

from collections.abc import Sequence

from absl import flags

from launch import cli
from launch import config_flag

_CONFIG = config_flag.define("configs/default.py", "What to plan.")
_TRACE = flags.DEFINE_string(
    "trace", None, "Write the plan as a Chrome trace, for Perfetto."
)


def main(argv: Sequence[str]) -> None:
  """Prints the plan."""
  cli.check_no_arguments(argv)
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
  print("rows of pipeline 0:")
  print(grid.render_grid(plan.timelines[0]))
  if _TRACE.value:
    writer = chrome_trace.TraceWriter(_TRACE.value, max_steps=1)
    writer.add_step(
        0, start_ms=0.0, planned=hooks.planned_slots(plan), measured=()
    )
    writer.write()
    print(f"trace: {_TRACE.value}")


if __name__ == "__main__":
  cli.run(main)
