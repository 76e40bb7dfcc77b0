r"""Shows the plan of a config: partition, memory, rows, predicted step time.

bamboo plan --config=quickstart
bamboo plan --config=default --trace=plan.json

Runs nothing on a device. With `config.plan.profile` the plan is made from
measured costs (see `bamboo profile`), else from XLA's count of operations.
"""

from absl import flags

from bamboo_jax.launch import cli
from bamboo_jax.launch import config_flag

_CONFIG = config_flag.define("default", "What to plan.")
_TRACE = flags.DEFINE_string(
    "trace", None, "Write the plan as a Chrome trace, for Perfetto."
)


def main() -> None:
  """Prints the plan."""
  if _TRACE.value:
    cli.check_folder(_TRACE.value)
  from bamboo_jax.metrics import chrome_trace
  from bamboo_jax.train.record import step_slots
  from bamboo_jax.train.setup import show

  planned = show.make_plan(_CONFIG.value)
  print(planned)
  if _TRACE.value:
    slots = step_slots.planned_slots([planned.timeline])
    step = chrome_trace.TracedStep(0, 0.0, slots, measured=())
    chrome_trace.write(_TRACE.value, [step])
    print(f"trace: {_TRACE.value}")


if __name__ == "__main__":
  cli.run(main)
