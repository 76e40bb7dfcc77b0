r"""Generates traces of preemptions, shows recorded ones, and imitates them.

bamboo trace generate --out=trace.csv --nodes_per_zone=11,11,10 \
  --hazard_per_node_hour=0.6 --bulk_sizes=1:5,2:3,6:2 --zone_correlation=0.05
bamboo trace show trace.csv --out=trace.png
bamboo trace show trace.csv --num_nodes=16 --time_scale=0.01 \
  --events=small.csv
bamboo trace fit trace.csv --out=fit.png

`generate` writes a file of events. `show` prints statistics of a trace. `fit`
finds the options with which `generate` imitates a trace, and compares the two.
Several files are zones of one cluster. Formats: `docs/research/traces.md`.
"""

from collections.abc import Sequence

from absl import flags

from bamboo_jax.launch import cli, figure_flags, trace_flags as given
from bamboo_jax.report import trace_report
from bamboo_jax.traces import (
    generator,
    parameters as trace_parameters,
    readers,
    scale,
    trace as trace_lib,
)

flags.adopt_module_key_flags(given)


def main(arguments: Sequence[str]) -> None:
  """Runs the command that the first of `arguments` names."""
  name, *files = arguments or [""]
  given.check(name)
  {"generate": _generate, "show": _show, "fit": _fit}[name](files)


def _generate(files: Sequence[str]) -> None:
  cli.check_no_arguments(files)
  if not (path := given.OUT.value):
    raise ValueError("The flag --out is needed: where to write the trace.")
  options = {holder.name: holder.value for holder in given.GENERATED}
  parameters = trace_parameters.parse_options(options)
  seed = given.SEED.value
  trace = generator.generate_trace(parameters, seed=seed, name=path)
  trace_report.show(trace, path=path)


def _show(files: Sequence[str]) -> None:
  path, figure = given.EVENTS.value, given.OUT.value
  formats = figure_flags.of_file(given.FORMAT, figure)
  trace_report.show(_read(files), path=path, figure=figure, formats=formats)


def _fit(files: Sequence[str]) -> None:
  first = given.SEED.value
  seeds = range(first, first + given.NUM_SEEDS.value)
  figure = given.OUT.value
  formats = figure_flags.of_file(given.FORMAT, figure)
  trace_report.fit(_read(files), seeds, figure=figure, formats=formats)


def _read(files: Sequence[str]) -> trace_lib.Trace:
  """Returns the trace in `files`, scaled by the flags."""
  json_data = given.JSON_DATA
  trace = readers.read_traces(files, seed=given.SEED.value, json_data=json_data.value)
  if json_data.present and not any("(json_data)" in n for n in trace.notes):
    raise ValueError("--json_data is for JSON, which none of the files is.")
  return scale.scale(trace, num_nodes=given.NUM_NODES.value, time_scale=given.TIME_SCALE.value)


if __name__ == "__main__":
  cli.run(main, takes_arguments=True)
