r"""Shows the plan of a config: partition, memory, rows, predicted step time.

bamboo plan --config=quickstart
bamboo plan --config=default --trace=plan.json
bamboo plan --config=llama:3.1_8b --config.plan.machine=h100
bamboo plan --config=llama:3.1_8b --config.plan.machine=p5.48xlarge --nodes=2

Runs nothing on a device and reads no data. With `config.plan.profile` the plan
is made from measured costs (see `bamboo profile`), else from counts of
operations. With `config.plan.machine` it is one for rented machines: speed,
memory and dollars; `--nodes` proposes layouts for a number of them.
"""

from absl import flags

from bamboo_jax.launch import cli, config_flag
from bamboo_jax.metrics import progress

_CONFIG = config_flag.define("default", "What to plan.")
_TRACE = flags.DEFINE_string("trace", None, "Write the plan as a Chrome trace, for Perfetto.")
_VERBOSE = flags.DEFINE_bool(
    "verbose", False, "With config.plan.machine: print rows and stages, too."
)
_NODES = flags.DEFINE_integer(
    "nodes",
    None,
    "With config.plan.machine: propose layouts for this many machines.",
    lower_bound=1,
)


def main() -> None:
  """Prints the plan."""
  for flag in (_VERBOSE, _NODES):
    if flag.value and _CONFIG.value.plan.machine is None:
      raise ValueError(f"--{flag.name} needs config.plan.machine.")
  if _TRACE.value:
    cli.check_folder(_TRACE.value)
  with progress.waiting("importing JAX"):
    from bamboo_jax.metrics import chrome_trace
    from bamboo_jax.train.record import step_traces
    from bamboo_jax.train.setup import rental, show

  if _NODES.value:
    with progress.waiting("layouts are compared"):
      text = rental.propose(_CONFIG.value, _NODES.value)
    print(text)
    return
  with progress.waiting("the model is traced, and layers and rows are planned"):
    planned = show.make_plan(_CONFIG.value)
  print(planned)
  if _VERBOSE.value:
    print(f"\n{planned.details}")
  if _TRACE.value:
    slots = step_traces.planned_slots([planned.timeline])
    step = chrome_trace.TracedStep(0, 0.0, slots, measured=())
    chrome_trace.write(_TRACE.value, [step])
    print(f"trace: {_TRACE.value}")


if __name__ == "__main__":
  cli.run(main)
