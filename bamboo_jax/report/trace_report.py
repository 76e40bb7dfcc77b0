"""Traces on the terminal, as events in a file, and as a figure."""

from collections.abc import Sequence
import pathlib
from typing import Any

from bamboo_jax import base
from bamboo_jax.metrics import palette, plots
from bamboo_jax.traces import readers, trace as trace_lib

Trace = trace_lib.Trace


def show(
    trace: Trace, *, path: str | None, figure: str | None = None, formats: Sequence[str] = ("png",)
) -> None:
  """Prints a summary of a trace; writes events to `path`, draws `figure`."""
  for name, value in trace_lib.summarize(trace).items():
    print(f"{name:28} {value:9.4g}")
  bulks = " ".join(f"{n}:{times}" for n, times in sorted(trace_lib.count_bulks(trace).items()))
  print(f"{'instants by nodes':28} {bulks or '-'}")
  print(f"{'zones':28} {' '.join(trace.zones).strip() or '-'}")
  if (usd_per_hour := trace_lib.mean_usd_per_hour(trace)) is not None:
    print(f"{'mean $ per node-hour':28} {usd_per_hour:9.4g}")
  for note in trace.notes:
    print(f"note: {note}")
  if path:
    base.write_atomically(path, readers.render_events(trace))
    print(f"events: {path}")
  if figure:
    for file in plots.save_figure(draw(trace), figure, formats):
      print(f"figure: {file}")


def draw(trace: Trace) -> Any:
  """Returns a figure of live and preempted nodes over time, and of instants by size."""
  fig, [[over_time, by_size]] = plots.new_figure((12, 3.4), 1, 2, width_ratios=(3, 1))
  lost = [sum(e.kind == "remove" for e in events) for _, events in trace.instants()]
  times_ms, live = zip(*trace.live_steps(), strict=True)
  ends_ms = (*times_ms, trace.duration_ms)
  *hours, end = [time_ms / trace_lib.MS_PER_HOUR for time_ms in ends_ms]
  name = plots.plain(pathlib.PurePath(trace.name).name)
  over_time.set_title(name, loc="left", fontsize=10)
  style = dict(color=palette.BLUE, linewidth=1.2, label="live nodes")
  over_time.step([*hours, end], [*live, live[-1]], where="post", **style)
  over_time.vlines(hours, 0, lost, color=palette.RED, label="preempted nodes")
  over_time.set_xlabel("time (h)")
  over_time.set_ylabel("nodes")
  over_time.set_ylim(bottom=0)
  bulks = trace_lib.count_bulks(trace)
  by_size.bar(list(bulks), list(bulks.values()), color=palette.RED)
  by_size.set_xlabel("nodes preempted at an instant")
  by_size.set_ylabel("instants")
  by_size.xaxis.set_major_locator(plots.count_locator())
  plots.add_legend(fig, over_time.get_legend_handles_labels()[0], side="upper")
  return fig
