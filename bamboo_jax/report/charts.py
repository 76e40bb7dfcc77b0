"""Figures of a report, drawn with Matplotlib (imported late, as it is slow)."""

from collections.abc import Sequence
import itertools
from typing import Any

from bamboo_jax.metrics import plots
from bamboo_jax.report import content

# Okabe and Ito's colours, which most colour-blind readers can tell apart.
_KIND_COLOURS = {
    "useful": "#0072B2",
    "communication": "#56B4E9",
    "redundant": "#CC79A7",
    "bubble": "#DDDDDD",
    "recovery": "#E69F00",
    "checkpoint": "#F0E442",
    "restart": "#5F4690",
    "lost": "#D55E00",
    "idle": "#999999",
}
# The cheapest rung first.
_RUNG_COLOURS = {
    "": "#999999",
    "repair": "#56B4E9",
    "shadow": "#0072B2",
    "reroute": "#009E73",
    "drop": "#CC79A7",
    "reconfigure": "#E69F00",
    "checkpoint": "#D55E00",
    "wait": "#5F4690",
}
_LINE_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#5F4690", "#333333"),
)
_LINE_STYLES = ("-", "--", ":")
_MARKERS = "os^vDPX*"
_SPARE_COLOUR = "#333333"
_NUM_BINS = 240  # Of throughput over time.
# Times of an axis are shown in the largest unit of which there are two.
_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def draw_course(run: content.Run) -> Any:
  """Returns a figure of a run over time; it must have a course."""
  course = run.course
  unit_secs, unit = time_unit(course.secs[-1] - course.secs[0])
  times = [secs / unit_secs for secs in course.secs]
  parts = 4 if course.events else 3
  fig, grid = plots.new_figure((11, 1.9 * parts), parts, sharex=True)
  rows = grid[:, 0]
  rows[-1].margins(x=0.01)
  edges, means, lows, highs = _bin(course)
  edges = [secs / unit_secs for secs in edges]
  style = dict(color="#0072B2", baseline=None)
  rows[0].stairs(highs, edges, baseline=lows, fill=True, color="#BBD7EA")
  rows[0].stairs(means, edges, linewidth=0.9, **style)
  rows[0].set_ylabel("samples/s")
  rows[1].stairs(course.num_nodes, times, linewidth=0.8, **style)
  rows[1].set_ylabel("live nodes")
  for axes in rows[:2]:
    axes.set_ylim(bottom=0)
  rows[2].plot(times, course.usd, color="#009E73")
  rows[2].set_ylabel("dollars")
  rows[2].set_ylim(bottom=0)
  if course.events:
    _draw_events(rows[3], course.events, unit_secs)
  rows[-1].set_xlabel(unit)
  fig.suptitle(_plain(run.name))
  fig.align_ylabels(rows[:3])
  return fig


def draw_value(
    curves: Sequence[content.Curve], *, rate_name: str, value_name: str
) -> Any:
  """Returns a figure of value against preemption rate, all policies.

  Each line is labelled at its end; labels stand in the order of value there.
  """
  fig, [[axes]] = plots.new_figure((9, 0.32 * len(curves) + 3.0))
  ranked = sorted(curves, key=lambda c: c.points[-1].value, reverse=True)
  for i, curve in enumerate(ranked):
    points = curve.points
    colour = _LINE_COLOURS[i % len(_LINE_COLOURS)]
    axes.errorbar(
        [p.rate for p in points],
        [p.value for p in points],
        yerr=[
            [p.value - max(0.0, p.low) for p in points],
            [p.high - p.value for p in points],
        ],
        color=colour,
        linestyle=_LINE_STYLES[i // len(_LINE_COLOURS) % len(_LINE_STYLES)],
        marker=_MARKERS[i % len(_MARKERS)],
        markersize=4,
        linewidth=1.2,
        elinewidth=0.8,
        capsize=2,
    )
    axes.annotate(
        _plain(curve.policy),
        (points[-1].rate, points[-1].value),
        xytext=(1.04, 1.0 - (i + 0.5) / len(ranked)),
        textcoords="axes fraction",
        va="center",
        color=colour,
        arrowprops=dict(arrowstyle="-", color=colour, linewidth=0.5),
        annotation_clip=False,
    )
  axes.set_xlabel(_plain(rate_name))
  axes.set_ylabel(_plain(value_name))
  axes.set_ylim(bottom=0)
  return fig


def draw_node_time(runs: Sequence[content.Run]) -> Any:
  """Returns a figure with a bar for each run: where its nodes' time went."""
  fig, [[axes]] = plots.new_figure((10, 1.6 + 0.42 * len(runs)))
  left = [0.0] * len(runs)
  style = dict(edgecolor="white", linewidth=0.5)
  for kind, colour in _KIND_COLOURS.items():
    shares = [100 * run.account.node_time.shares()[kind] for run in runs]
    rows = range(len(runs))
    axes.barh(rows, shares, left=left, color=colour, label=kind, **style)
    left = [a + b for a, b in zip(left, shares, strict=True)]
  axes.set_yticks(range(len(runs)), [_plain(run.name) for run in runs])
  axes.invert_yaxis()
  axes.set_xlim(0, 100)
  axes.set_xlabel("share of the nodes' time (%)")
  columns = len(_KIND_COLOURS)
  fig.legend(loc="outside lower center", ncols=columns, frameon=False)
  return fig


def time_unit(span_secs: float) -> tuple[float, str]:
  """Returns the unit that fits a span, in seconds, and its name."""
  for secs, name in _UNITS:
    if span_secs >= 2 * secs:
      return secs, name
  return _UNITS[-1]


def _bin(
    course: content.Course,
) -> tuple[list[float], list[float], list[float], list[float]]:
  """Returns bounds of equal bins, and in each mean, least and most samples/s.

  Short pauses would be strokes that hide the rest.
  """
  start, end = course.secs[0], course.secs[-1]
  edges = [start + (end - start) * i / _NUM_BINS for i in range(_NUM_BINS + 1)]
  means, lows, highs, piece = [], [], [], 0
  for low_secs, high_secs in itertools.pairwise(edges):
    total, seen = 0.0, []
    while True:
      rate = course.samples_per_sec[piece]
      piece_secs = course.secs[piece : piece + 2]
      overlap = min(high_secs, piece_secs[1]) - max(low_secs, piece_secs[0])
      if overlap > 0 or not seen:
        total += max(0.0, overlap) * rate
        seen.append(rate)
      is_last = piece + 1 == len(course.samples_per_sec)
      if is_last or piece_secs[1] >= high_secs:
        break
      piece += 1
    means.append(total / (high_secs - low_secs) if end > start else seen[0])
    lows.append(min(seen))
    highs.append(max(seen))
  return edges, means, lows, highs


def _draw_events(
    axes: Any, events: Sequence[content.Event], unit_secs: float
) -> None:
  """Draws a row of marks for each rung that was taken."""
  taken = {event.rung for event in events}
  rungs = [rung for rung in _RUNG_COLOURS if rung in taken]
  rungs += sorted(taken - set(rungs))
  for row, rung in enumerate(rungs):
    times = [e.secs / unit_secs for e in events if e.rung == rung]
    style = dict(linestyle="", marker="|", markersize=12)
    colour = _RUNG_COLOURS.get(rung, _SPARE_COLOUR)
    axes.plot(times, [row] * len(times), color=colour, **style)
  labels = [_plain(rung) or "no rung" for rung in rungs]
  axes.set_yticks(range(len(rungs)), labels)
  axes.set_ylim(len(rungs) - 0.4, -0.6)
  axes.set_ylabel("rung taken")


def _plain(text: str) -> str:
  """Returns `text` such that Matplotlib reads no formula in it."""
  return text.replace("$", r"\$")
