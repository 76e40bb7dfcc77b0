r"""Shows the plan of a config: partition, memory, rows, predicted step time.

bamboo plan --config=quickstart
bamboo plan --config=default --trace=plan.json
bamboo plan --config=llama:3.1_8b --config.plan.machine=h100
bamboo plan --config=llama:3.1_8b --config.plan.machine=p5.48xlarge --nodes=2
bamboo plan --config=default --zones=us/a,eu/a \
  --config.plan.region_latency_ms=50 --config.plan.region_mbits=200
bamboo plan --config=gpt2:small --compile=h100
bamboo plan --list

Runs nothing on a device and reads no data. With `config.plan.profile` the plan
is made from measured costs (see `bamboo profile`), else from counts of
operations. With `config.plan.machine` it is one for rented machines: speed,
memory and dollars; `--nodes` proposes layouts for a number of them.

`--compile` compiles the programs for a GPU, on a machine without one, and shows
the memory of programs and stages, and XLA's count of operations. It needs the
extra `gpu_compile`, in an environment of its own; docs/guides/gpu.md. `--list`
lists models and variants, which `model.name` and `model.options.variant`
choose; parameters that several layers share are counted once.
"""

import dataclasses

from bamboo_jax.cli.flagset import flag
from bamboo_jax.config import Config
from bamboo_jax.launch import cli
from bamboo_jax.metrics import progress


@dataclasses.dataclass(frozen=True)
class PlanFlags:
  """What to plan, and what to show of it."""

  config: Config = cli.config("default", "What to plan.")
  trace: str | None = flag(None, "Write the plan as a Chrome trace, for Perfetto.")
  verbose: bool = flag(False, "With config.plan.machine: print rows and stages, too.")
  nodes: int | None = flag(
      None, "With config.plan.machine: propose layouts for this many machines.", least=1
  )
  zones: tuple[str, ...] = flag(
      (),
      "Zones of the nodes, in turn, as us/a,eu/a: tell what crosses between regions.",
      excludes="nodes list",
  )
  compile: str | None = flag(
      None,
      "Compile the programs for this GPU: l4, a100, h100, h200 or b200.",
      excludes="trace verbose nodes zones list",
  )
  list: bool = flag(
      False, "List the models: name,variant,layers,params.", excludes="trace verbose nodes"
  )


def main(flags: PlanFlags) -> None:
  """Prints the plan, or the list of models."""
  if flags.list:
    from bamboo_jax.models import zoo

    print("name,variant,layers,params")
    for name, variants in zoo.VARIANTS.items():
      for variant in variants:
        model = zoo.make_model(name, variant=variant)
        print(f"{name},{variant},{len(model.layers)},{model.num_params()}", flush=True)
    return
  if flags.compile:
    from bamboo_jax.gpu import report

    print(report.make_report(flags.config, flags.compile))
    return
  for name in ("verbose", "nodes"):
    if getattr(flags, name) and flags.config.plan.machine is None:
      raise ValueError(f"--{name} needs config.plan.machine.")
  if flags.trace:
    cli.check_folder(flags.trace)
  with progress.waiting("importing JAX"):
    from bamboo_jax.metrics import rows
    from bamboo_jax.training.record import step_traces
    from bamboo_jax.training.setup import show

  if flags.nodes:
    with progress.waiting("layouts are compared"):
      text = show.propose(flags.config, flags.nodes)
    print(text)
    return
  with progress.waiting("the model is traced, and layers and rows are planned"):
    planned = show.make_plan(flags.config, flags.zones)
  print(planned)
  if flags.verbose:
    print(f"\n{planned.details}")
  if flags.trace:
    slots = step_traces.planned_slots([planned.timeline])
    rows.write_trace(flags.trace, [rows.Step(0, 0.0, slots)])
    print(f"trace: {flags.trace}")


if __name__ == "__main__":
  cli.run(main)
