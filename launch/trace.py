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

from collections.abc import Callable, Sequence
import statistics
from typing import Any

from absl import flags

from bamboo_jax import base
from bamboo_jax.metrics import trace_plot
from bamboo_jax.traces import counts
from bamboo_jax.traces import fit
from bamboo_jax.traces import generator
from bamboo_jax.traces import parameters as trace_parameters
from bamboo_jax.traces import readers
from bamboo_jax.traces import scale
from bamboo_jax.traces import summary as trace_summary
from bamboo_jax.traces import trace as trace_lib
from launch import cli

_DEFAULT = trace_parameters.Parameters()
_MS_PER_HOUR = trace_summary.MS_PER_HOUR

_OUT = flags.DEFINE_string(
    "out", None, "Events to write (generate), or a PNG to draw (show, fit)."
)
_SEED = flags.DEFINE_integer(
    "seed", 0, "Of all that is random; which nodes go when a count drops."
)

# How a trace is generated: `trace_parameters.Parameters`, by the same names.
_NODES_PER_ZONE = flags.DEFINE_list(
    "nodes_per_zone", ["32"], "Nodes of each zone, such as 11,11,10."
)
_BULK_SIZES = flags.DEFINE_list(
    "bulk_sizes", ["1:1"], "Nodes lost at once and weights: 1:5,2:3,6:2."
)
_HOUR_PROFILE = flags.DEFINE_list(
    "hour_profile", ["1"] * 24, "24 weights of the hazard, from midnight on."
)
_NUMBERS = tuple(
    flags.DEFINE_float(name, getattr(_DEFAULT, name), help_text)
    for name, help_text in (
        ("hours", "Length of the trace."),
        ("hazard_per_node_hour", "Preemptions per node and hour."),
        ("zone_correlation", "Probability that a second zone is hit too."),
        ("start_hour", "Hour of the day at which the trace starts."),
        ("reacquire_secs", "Mean time until a node is replaced, or inf."),
        ("notice_secs", "How long before its preemption a node gets notice."),
    )
)
_GENERATED = (_NODES_PER_ZONE, _BULK_SIZES, _HOUR_PROFILE, *_NUMBERS)

# How a trace is read.
_JSON_DATA = flags.DEFINE_enum(
    "json_data",
    "counts",
    counts.MEANINGS,
    "What numbers in JSON are: live nodes, or preempted ones.",
)
_NUM_NODES = flags.DEFINE_integer(
    "num_nodes", None, "Scale to a cluster of so many nodes."
)
_TIME_SCALE = flags.DEFINE_float("time_scale", 1.0, "Multiply all times.")
_READ = (_JSON_DATA, _NUM_NODES, _TIME_SCALE)

_EVENTS = flags.DEFINE_string("events", None, "Write the trace as events.")
_NUM_SEEDS = flags.DEFINE_integer(
    "num_seeds", 20, "Generated traces to compare with.", lower_bound=1
)


def main(argv: Sequence[str]) -> None:
  """Runs the command that `argv` names."""
  if len(argv) < 2:
    raise ValueError(f"Which command? One of {', '.join(_COMMANDS)}.")
  name, *files = argv[1:]
  if name not in _COMMANDS:
    raise ValueError(base.suggest(name, _COMMANDS, what="command"))
  command, holders = _COMMANDS[name]
  allowed = [holder.name for holder in (_OUT, _SEED, *holders)]
  for holder in (*_GENERATED, *_READ, _EVENTS, _NUM_SEEDS):
    if holder.present and holder.name not in allowed:
      raise ValueError(f"--{holder.name} is not an option of {name}.")
  for path in (_OUT.value, _EVENTS.value):
    if path:
      cli.check_folder(path)
  command(files)


def _generate(files: Sequence[str]) -> None:
  """Writes a trace."""
  cli.check_no_arguments(["", *files])
  if not _OUT.value:
    raise ValueError("The flag --out is needed: where to write the trace.")
  parameters = _read_parameters()
  trace = generator.generate_trace(
      parameters, seed=_SEED.value, name=_OUT.value
  )
  base.write_atomically(_OUT.value, readers.render_events(trace))
  _print_figures(trace)
  print(f"events: {_OUT.value}")


def _show(files: Sequence[str]) -> None:
  """Prints what a trace comes to."""
  trace = _read(files)
  _print_figures(trace)
  if _EVENTS.value:
    base.write_atomically(_EVENTS.value, readers.render_events(trace))
    print(f"events: {_EVENTS.value}")
  _plot([trace])


def _fit(files: Sequence[str]) -> None:
  """Prints the options that imitate a trace, and what they come to."""
  recorded = _read(files)
  parameters = fit.fit_parameters(recorded)
  first = _SEED.value
  generated = [
      generator.generate_trace(
          parameters, seed=seed, name=f"generated, seed {seed}"
      )
      for seed in range(first, first + _NUM_SEEDS.value)
  ]
  figures = [trace_summary.summarize(trace).figures() for trace in generated]
  print(f"{'':28} {'recorded':>9}  generated, {len(generated)} seeds")
  for name, value in trace_summary.summarize(recorded).figures().items():
    values = [f[name] for f in figures]
    print(
        f"{name:28} {value:9.4g}  {statistics.fmean(values):.4g} "
        f"({min(values):.4g} to {max(values):.4g})"
    )
  _print_notes(recorded)
  print(f"python -m launch.trace generate --out=FILE {_render(parameters)}")
  _plot([recorded, generated[0]])


def _read(files: Sequence[str]) -> trace_lib.Trace:
  """Returns the trace in the files, scaled as the flags say."""
  trace = readers.read_traces(
      files, seed=_SEED.value, json_data=_JSON_DATA.value
  )
  if _NUM_NODES.value is not None:
    trace = scale.scale_nodes(trace, _NUM_NODES.value)
  return scale.scale_time(trace, _TIME_SCALE.value)


def _read_parameters() -> trace_parameters.Parameters:
  """Returns the parameters that the flags give."""
  return trace_parameters.Parameters(
      nodes_per_zone=_parse_list(_NODES_PER_ZONE, int),
      bulk_sizes=_parse_list(_BULK_SIZES, _parse_weighted),
      hour_profile=_parse_list(_HOUR_PROFILE, float),
      **{holder.name: holder.value for holder in _NUMBERS},
  )


def _parse_list(
    holder: flags.FlagHolder, parse: Callable[[str], Any]
) -> tuple[Any, ...]:
  try:
    return tuple(map(parse, holder.value))
  except ValueError:
    raise ValueError(
        f"--{holder.name} must be like {','.join(holder.default)}, got "
        f"{','.join(holder.value)!r}."
    ) from None


def _parse_weighted(text: str) -> tuple[int, float]:
  size, weight = text.split(":")
  return int(size), float(weight)


def _render(parameters: trace_parameters.Parameters) -> str:
  """Returns the options of `generate`, without those of their default."""
  options = []
  for holder in _GENERATED:
    value = getattr(parameters, holder.name)
    if value == getattr(_DEFAULT, holder.name):
      continue
    if holder is _BULK_SIZES:
      text = ",".join(f"{size}:{weight:.4g}" for size, weight in value)
    elif isinstance(value, tuple):
      text = ",".join(f"{v:.4g}" for v in value)
    else:
      text = f"{value:.4g}"
    options.append(f"--{holder.name}={text}")
  return " ".join(options)


def _print_figures(trace: trace_lib.Trace) -> None:
  """Prints what the trace comes to."""
  summary = trace_summary.summarize(trace)
  for name, value in summary.figures().items():
    print(f"{name:28} {value:9.4g}")
  bulks = " ".join(f"{n}:{times}" for n, times in sorted(summary.bulks.items()))
  print(f"{'instants by nodes':28} {bulks or '-'}")
  print(f"{'zones':28} {' '.join(trace.zones).strip() or '-'}")
  _print_notes(trace)


def _print_notes(trace: trace_lib.Trace) -> None:
  for note in trace.notes:
    print(f"note: {note}")


def _plot(traces: Sequence[trace_lib.Trace]) -> None:
  """Draws the traces if `--out` says where."""
  if _OUT.value:
    trace_plot.plot_traces(_OUT.value, [_curve(trace) for trace in traces])
    print(f"figure: {_OUT.value}")


def _curve(trace: trace_lib.Trace) -> trace_plot.Curve:
  live = trace.live_steps()
  instants = [events for _, events in trace.instants()]
  return trace_plot.Curve(
      name=trace.name,
      hours=[time_ms / _MS_PER_HOUR for time_ms, _ in live],
      live=[count for _, count in live],
      lost=[sum(e.kind == "remove" for e in events) for events in instants],
      end_hours=trace.duration_ms / _MS_PER_HOUR,
  )


_COMMANDS = {
    "generate": (_generate, _GENERATED),
    "show": (_show, (*_READ, _EVENTS)),
    "fit": (_fit, (*_READ, _NUM_SEEDS)),
}

if __name__ == "__main__":
  cli.run(main)
