"""Traces as text: figures, a comparison, the options of a generator."""

from collections.abc import Mapping, Sequence
import dataclasses
import statistics

from bamboo_jax.traces import parameters as trace_parameters
from bamboo_jax.traces import summary as trace_summary
from bamboo_jax.traces import trace as trace_lib


def parse_parameters(
    given: Mapping[str, Sequence[str] | float],
) -> trace_parameters.Parameters:
  """Returns the parameters of options written by `render_options`.

  Raises `ValueError` if a list has entries of another kind.
  """
  read = dict(given)
  for name, entry, example in (
      ("nodes_per_zone", int, "32"),
      ("bulk_sizes", _weighted, "1:1"),
      ("hour_profile", float, "1,1"),
  ):
    try:
      read[name] = tuple(map(entry, given[name]))
    except ValueError:
      raise ValueError(
          f"--{name} must be like {example}, got {','.join(given[name])!r}."
      ) from None
  return trace_parameters.Parameters(**read)


def _weighted(text: str) -> tuple[int, float]:
  size, weight = text.split(":")
  return int(size), float(weight)


def render_options(parameters: trace_parameters.Parameters) -> str:
  """Returns the options of `generate` that differ from their defaults."""
  options, default = [], trace_parameters.Parameters()
  for field in dataclasses.fields(parameters):
    value = getattr(parameters, field.name)
    if value == getattr(default, field.name):
      continue
    if field.name == "bulk_sizes":
      text = ",".join(f"{size}:{weight:.4g}" for size, weight in value)
    elif isinstance(value, tuple):
      text = ",".join(f"{v:.4g}" for v in value)
    else:
      text = f"{value:.4g}"
    options.append(f"--{field.name}={text}")
  return " ".join(options)


def render_figures(trace: trace_lib.Trace) -> str:
  """Returns the figures of a trace, a line each."""
  summary = trace_summary.summarize(trace)
  bulks = " ".join(f"{n}:{times}" for n, times in sorted(summary.bulks.items()))
  lines = [f"{k:28} {value:9.4g}" for k, value in summary.figures().items()]
  lines += [
      f"{'instants by nodes':28} {bulks or '-'}",
      f"{'zones':28} {' '.join(trace.zones).strip() or '-'}",
  ]
  return "\n".join(lines + [f"note: {note}" for note in trace.notes])


def render_comparison(
    recorded: trace_lib.Trace, generated: Sequence[trace_lib.Trace]
) -> str:
  """Returns the figures of a trace beside those of imitations."""
  figures = [trace_summary.summarize(trace).figures() for trace in generated]
  lines = [f"{'':28} {'recorded':>9}  generated, {len(generated)} seeds"]
  for name, value in trace_summary.summarize(recorded).figures().items():
    values = [f[name] for f in figures]
    lines.append(
        f"{name:28} {value:9.4g}  {statistics.fmean(values):.4g} "
        f"({min(values):.4g} to {max(values):.4g})"
    )
  return "\n".join(lines + [f"note: {note}" for note in recorded.notes])
