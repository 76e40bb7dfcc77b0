"""Traces on the terminal, as events in a file, and as a figure."""

import collections
from collections.abc import Sequence
import pathlib
from typing import Any

from bamboo_jax import base
from bamboo_jax.metrics import palette, plots
from bamboo_jax.traces import readers, summary as trace_summary, trace as trace_lib

Trace = trace_lib.Trace


def show(
    trace: Trace, *, path: str | None, figure: str | None = None, formats: Sequence[str] = ("png",)
) -> None:
  """Prints a summary of a trace; writes events to `path`, draws `figure`."""
  summary = trace_summary.summarize(trace)
  for name, value in summary.figures().items():
    print(f"{name:28} {value:9.4g}")
  bulks = " ".join(f"{n}:{times}" for n, times in sorted(summary.bulks.items()))
  print(f"{'instants by nodes':28} {bulks or '-'}")
  print(f"{'zones':28} {' '.join(trace.zones).strip() or '-'}")
  if (usd_per_hour := trace_summary.mean_usd_per_hour(trace)) is not None:
    print(f"{'mean $ per node-hour':28} {usd_per_hour:9.4g}")
  _print_notes(trace)
  if path:
    base.write_atomically(path, readers.render_events(trace))
    print(f"events: {path}")
  if figure:
    plot_traces(figure, [trace], formats)


def _print_notes(trace: Trace) -> None:
  for note in trace.notes:
    print(f"note: {note}")


def plot_traces(path: str, traces: Sequence[Trace], formats: Sequence[str] = ("png",)) -> None:
  """Draws traces, one below the other, on one scale; prints the files."""
  for file in plots.save_figure(draw_traces(traces), path, formats):
    print(f"figure: {file}")


def draw_traces(traces: Sequence[Trace]) -> Any:
  """Returns the figure of `plot_traces`."""
  size = (12, 0.6 + 2.8 * len(traces))
  shared = dict(sharex="col", sharey="col", width_ratios=(3, 1))
  fig, rows = plots.new_figure(size, len(traces), 2, **shared)
  for (over_time, by_size), trace in zip(rows, traces, strict=True):
    instants = [events for _, events in trace.instants()]
    lost = [sum(e.kind == "remove" for e in events) for events in instants]
    _draw_nodes(over_time, trace, lost)
    _draw_bulks(by_size, lost)
  handles, _ = rows[0, 0].get_legend_handles_labels()
  plots.add_legend(fig, handles, side="upper")
  rows[-1, 0].set_xlabel("time (h)")
  rows[-1, 1].set_xlabel("nodes preempted at an instant")
  return fig


def _draw_nodes(axes: Any, trace: Trace, lost: Sequence[int]) -> None:
  times_ms, live = zip(*trace.live_steps(), strict=True)
  ends_ms = (*times_ms, trace.duration_ms)
  *hours, end = [time_ms / trace_lib.MS_PER_HOUR for time_ms in ends_ms]
  name = plots.plain(pathlib.PurePath(trace.name).name)
  axes.set_title(name, loc="left", fontsize=10)
  style = dict(color=palette.BLUE, linewidth=1.2, label="live nodes")
  axes.step([*hours, end], [*live, live[-1]], where="post", **style)
  axes.vlines(hours, 0, lost, color=palette.RED, label="preempted nodes")
  axes.set_ylabel("nodes")
  axes.set_ylim(bottom=0)


def _draw_bulks(axes: Any, lost: Sequence[int]) -> None:
  bulks = collections.Counter(n for n in lost if n)
  axes.bar(list(bulks), list(bulks.values()), color=palette.RED)
  axes.set_ylabel("instants")
  axes.xaxis.set_major_locator(plots.count_locator())
