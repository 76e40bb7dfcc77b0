r"""Generates traces of preemptions, shows recorded ones, and imitates them.

python -m launch.trace generate --out=trace.csv --nodes_per_zone=11,11,10 \
  --hazard_per_node_hour=0.6 --bulk_sizes=1:5,2:3,6:2 --zone_correlation=0.05
python -m launch.trace show trace.csv --out=trace.png
python -m launch.trace show trace.csv --num_nodes=16 --time_scale=0.01 \
  --events=small.csv
python -m launch.trace fit trace.csv --out=fit.png

`generate` writes a file of events. `show` prints what a trace comes to. `fit`
finds the options with which `generate` imitates a trace, and compares the two.
Several files are zones of one cluster. Formats are in `docs/traces.md`.
"""

from collections.abc import Sequence

from absl import flags

from bamboo_jax import base
from bamboo_jax.report import trace_report
from bamboo_jax.traces import generator
from bamboo_jax.traces import parameters as trace_parameters
from launch import cli
from launch import trace_flags as given

flags.adopt_module_key_flags(given)


def main(argv: Sequence[str]) -> None:
  """Runs the command that `argv` names."""
  if len(argv) < 2:
    raise ValueError(f"Which command? One of {', '.join(_COMMANDS)}.")
  name, *files = argv[1:]
  if name not in _COMMANDS:
    raise ValueError(base.suggest(name, _COMMANDS, what="command"))
  command, holders = _COMMANDS[name]
  given.check(name, holders)
  for path in (given.OUT.value, given.EVENTS.value):
    if path:
      cli.check_folder(path)
  command(files)


def _generate(files: Sequence[str]) -> None:
  cli.check_no_arguments(["", *files])
  if not given.OUT.value:
    raise ValueError("The flag --out is needed: where to write the trace.")
  options = {holder.name: holder.value for holder in given.GENERATED}
  parameters = trace_parameters.parse_options(options)
  path, seed = given.OUT.value, given.SEED.value
  trace = generator.generate_trace(parameters, seed=seed, name=path)
  trace_report.show(trace, path=path)


def _show(files: Sequence[str]) -> None:
  trace = given.read(files)
  trace_report.show(trace, path=given.EVENTS.value, figure=given.OUT.value)


def _fit(files: Sequence[str]) -> None:
  seeds = range(given.SEED.value, given.SEED.value + given.NUM_SEEDS.value)
  trace_report.fit(given.read(files), seeds, figure=given.OUT.value)


_COMMANDS = {
    "generate": (_generate, given.GENERATED),
    "show": (_show, (*given.READ, given.EVENTS)),
    "fit": (_fit, (*given.READ, given.NUM_SEEDS)),
}

if __name__ == "__main__":
  cli.run(main)
