"""Figures of traces."""

from collections.abc import Sequence
import os

from bamboo_jax.metrics import trace_plot
from bamboo_jax.traces import summary as trace_summary
from bamboo_jax.traces import trace as trace_lib


def plot(
    path: str | os.PathLike[str], traces: Sequence[trace_lib.Trace]
) -> None:
  """Draws live nodes and losses of some traces as a PNG."""
  trace_plot.plot_traces(path, [_curve(trace) for trace in traces])


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
