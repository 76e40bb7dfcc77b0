"""Traces on the screen, as events in a file, and as a figure."""

from collections.abc import Iterable, Sequence

from bamboo_jax import base
from bamboo_jax.metrics import trace_plot
from bamboo_jax.traces import fit as fit_lib
from bamboo_jax.traces import generator
from bamboo_jax.traces import readers
from bamboo_jax.traces import render
from bamboo_jax.traces import summary as trace_summary
from bamboo_jax.traces import trace as trace_lib


def show(
    trace: trace_lib.Trace, *, path: str | None, figure: str | None = None
) -> None:
  """Prints figures of a trace; writes events to `path`, draws to `figure`."""
  print(render.render_figures(trace))
  if path:
    base.write_atomically(path, readers.render_events(trace))
    print(f"events: {path}")
  _plot(figure, [trace])


def fit(
    recorded: trace_lib.Trace, seeds: Iterable[int], *, figure: str | None
) -> None:
  """Prints how to imitate a trace, and how well that does with some seeds."""
  parameters = fit_lib.fit_parameters(recorded)
  generated = [
      generator.generate_trace(parameters, seed=k, name=f"generated, seed {k}")
      for k in seeds
  ]
  print(render.render_comparison(recorded, generated))
  options = render.render_options(parameters)
  print(f"python -m launch.trace generate --out=FILE {options}")
  _plot(figure, [recorded, generated[0]])


def _plot(path: str | None, traces: Sequence[trace_lib.Trace]) -> None:
  if path:
    trace_plot.plot_traces(path, [_curve(trace) for trace in traces])
    print(f"figure: {path}")


def _curve(trace: trace_lib.Trace) -> trace_plot.Curve:
  live = trace.live_steps()
  instants = [events for _, events in trace.instants()]
  return trace_plot.Curve(
      name=trace.name,
      hours=[time_ms / trace_summary.MS_PER_HOUR for time_ms, _ in live],
      live=[count for _, count in live],
      lost=[sum(e.kind == "remove" for e in events) for events in instants],
      end_hours=trace.duration_ms / trace_summary.MS_PER_HOUR,
  )
