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
from bamboo_jax.traces import counts as trace_counts
from bamboo_jax.traces import generator
from bamboo_jax.traces import parameters as trace_parameters
from bamboo_jax.traces import readers
from bamboo_jax.traces import scale
from bamboo_jax.traces import trace as trace_lib
from launch import cli

_OUT = flags.DEFINE_string(
    "out", None, "Events to write (generate), or a PNG to draw (show, fit)."
)
_SEED = flags.DEFINE_integer(
    "seed", 0, "Of all that is random; which nodes go when a count drops."
)

# How a trace is generated: `trace_parameters.Parameters`, by the same names.
_GENERATED = (
    flags.DEFINE_list(
        "nodes_per_zone", ["32"], "Nodes of each zone, such as 11,11,10."
    ),
    flags.DEFINE_list(
        "bulk_sizes", ["1:1"], "Nodes lost at once and weights: 1:5,2:3,6:2."
    ),
    flags.DEFINE_list(
        "hour_profile",
        ["1"] * 24,
        "24 weights of the hazard, from midnight on.",
    ),
    *(
        flags.DEFINE_float(
            name, getattr(trace_parameters.Parameters(), name), help_text
        )
        for name, help_text in (
            ("hours", "Length of the trace."),
            ("hazard_per_node_hour", "Preemptions per node and hour."),
            ("zone_correlation", "Probability that a second zone is hit too."),
            ("start_hour", "Hour of the day at which the trace starts."),
            ("reacquire_secs", "Mean time until a node is replaced, or inf."),
            (
                "notice_secs",
                "How long before its preemption a node gets notice.",
            ),
        )
    ),
)

# How a trace is read.
_JSON_DATA = flags.DEFINE_enum(
    "json_data",
    "counts",
    trace_counts.MEANINGS,
    "What numbers in JSON are: live nodes, or preempted ones.",
)
_NUM_NODES = flags.DEFINE_integer(
    "num_nodes", None, "Scale to a cluster of so many nodes."
)
_TIME_SCALE = flags.DEFINE_float("time_scale", 1.0, "Multiply all times.")
_READ = (_JSON_DATA, _NUM_NODES, _TIME_SCALE)

_EVENTS = flags.DEFINE_string("events", None, "Write the trace as events.")
_NUM_SEEDS = flags.DEFINE_integer(
    "num_seeds", 20, "Generated traces to compare with.", 1
)


def main(arguments: Sequence[str]) -> None:
  """Runs the command that the first of `arguments` names."""
  if not arguments:
    raise ValueError(f"Which command? One of {', '.join(_COMMANDS)}.")
  name, *files = arguments
  if name not in _COMMANDS:
    raise ValueError(base.suggest(name, _COMMANDS, what="command"))
  command, holders = _COMMANDS[name]
  _check_flags(name, holders)
  for path in (_OUT.value, _EVENTS.value):
    if path:
      cli.check_folder(path)
  command(files)


def _check_flags(command: str, holders: Sequence[flags.FlagHolder]) -> None:
  """Raises `ValueError` if a flag is set that is not one of a command."""
  allowed = (_OUT.name, _SEED.name, *(holder.name for holder in holders))
  if command != "generate" and not (_OUT.value or ".png").endswith(".png"):
    raise ValueError(f"--out must be a PNG, such as a.png, got {_OUT.value!r}.")
  for holder in (*_GENERATED, *_READ, _EVENTS, _NUM_SEEDS):
    if holder.present and holder.name not in allowed:
      raise ValueError(f"--{holder.name} is not an option of {command}.")


def _generate(files: Sequence[str]) -> None:
  cli.check_no_arguments(files)
  path, seed = _OUT.value, _SEED.value
  if not path:
    raise ValueError("The flag --out is needed: where to write the trace.")
  options = {holder.name: holder.value for holder in _GENERATED}
  parameters = trace_parameters.parse_options(options)
  trace = generator.generate_trace(parameters, seed=seed, name=path)
  trace_report.show(trace, path=path)


def _show(files: Sequence[str]) -> None:
  trace_report.show(_read(files), path=_EVENTS.value, figure=_OUT.value)


def _fit(files: Sequence[str]) -> None:
  seeds = range(_SEED.value, _SEED.value + _NUM_SEEDS.value)
  trace_report.fit(_read(files), seeds, figure=_OUT.value)


def _read(files: Sequence[str]) -> trace_lib.Trace:
  """Returns the trace in some files, scaled as the flags say."""
  trace = readers.read_traces(
      files, seed=_SEED.value, json_data=_JSON_DATA.value
  )
  if _JSON_DATA.present and not any("(json_data)" in n for n in trace.notes):
    raise ValueError("--json_data is for JSON, which none of the files is.")
  return scale.scale(
      trace, num_nodes=_NUM_NODES.value, time_scale=_TIME_SCALE.value
  )


_COMMANDS = {
    "generate": (_generate, _GENERATED),
    "show": (_show, (*_READ, _EVENTS)),
    "fit": (_fit, (*_READ, _NUM_SEEDS)),
}

if __name__ == "__main__":
  cli.run(main, takes_arguments=True)
