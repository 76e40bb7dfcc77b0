"""Figures of a report, drawn with Matplotlib (imported late, as it is slow)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bamboo_jax.metrics import palette, plots
from bamboo_jax.report import content

# The cheapest rung first.
_RUNG_COLOURS = {
    "": palette.GREY,
    "repair": palette.SKY,
    "shadow": palette.BLUE,
    "reroute": palette.GREEN,
    "drop": palette.PINK,
    "reconfigure": palette.ORANGE,
    "checkpoint": palette.RED,
    "wait": palette.PURPLE,
}
_LINE_COLOURS = (
    *(palette.BLUE, palette.RED, palette.GREEN, palette.PINK),
    *(palette.ORANGE, palette.SKY, palette.PURPLE, "#333333"),
)
_LINE_STYLES = ("-", "--", ":")
_MARKERS = "os^vDPX*"
_SPARE_COLOUR = "#333333"
_NUM_BINS = 240  # Of throughput over time.
_CLOSE = 0.1  # Values within this share of the best get a panel of their own.
_LABEL_INCHES = 0.22  # From a curve's label to the next.


class TimeUnit(NamedTuple):
  """A unit of time axes."""

  secs: float
  name: str


# The largest unit that fits twice is used.
_UNITS = (TimeUnit(3600.0, "hours"), TimeUnit(60.0, "minutes"), TimeUnit(1.0, "seconds"))


def draw_course(run: content.ReportRun) -> Any:
  """Returns a figure of a run over time; the run must have a course."""
  course = run.course
  assert course is not None
  unit_secs, unit = time_unit(course.secs[-1] - course.secs[0])
  times = [secs / unit_secs for secs in course.secs]
  parts = 4 if course.events else 3
  fig, grid = plots.new_figure((11, 1.9 * parts), parts, sharex=True)
  rows = grid[:, 0]
  rows[-1].margins(x=0.01)
  bins = _bin(course)
  edges = bins.edges_secs / unit_secs
  bin_secs = (course.secs[-1] - course.secs[0]) / _NUM_BINS
  style = dict(color=palette.BLUE, baseline=None)
  rows[0].stairs(
      bins.highs,
      edges,
      baseline=bins.lows,
      fill=True,
      color="#BBD7EA",
      label=f"least to most within {bin_secs:.3g} s",
  )
  rows[0].stairs(bins.means, edges, linewidth=0.9, label="mean of these", **style)
  rows[0].set_ylabel("samples/s")
  place = dict(loc="lower right", bbox_to_anchor=(1.0, 1.0))
  rows[0].legend(ncols=2, frameon=False, fontsize=9, **place)
  rows[1].stairs(course.num_nodes, times, linewidth=0.8, **style)
  rows[1].set_ylabel("live nodes")
  for axes in rows[:2]:
    axes.set_ylim(bottom=0)
  rows[2].plot(times, course.usd, color=palette.GREEN)
  rows[2].set_ylabel("cost ($)")
  rows[2].set_ylim(bottom=0)
  if course.events:
    _draw_events(rows[3], course.events, unit_secs)
  rows[-1].set_xlabel(f"time ({unit})")
  rows[0].set_title(plots.plain(run.name), loc="left")
  fig.align_ylabels(rows[:3])
  return fig


def draw_value(report: content.Page) -> Any:
  """Returns a figure of value against preemption rate, all policies.

  Each line is labelled at its end, in the order of value there. If several end
  close to the best, which a scale from 0 hides, a second panel enlarges those.
  """
  curves = report.curves
  ranked = sorted(curves, key=lambda c: c.points[-1].value, reverse=True)
  best: dict[float, float] = {}
  for point in (p for curve in curves for p in curve.points):
    best[point.rate] = max(point.value, best.get(point.rate, point.value))
  ends = [curve.points[-1] for curve in ranked]
  is_close = [end.value > (1 - _CLOSE) * best[end.rate] for end in ends]
  has_close = sum(is_close) > 1
  height = max(3.6, _LABEL_INCHES * len(curves) + 0.4)
  shares = (height, 2.4) if has_close else (height,)
  fig, grid = plots.new_figure(
      (9, sum(shares) + 0.9), len(shares), sharex=True, height_ratios=shares
  )
  axes = grid[0, 0]
  _draw_curves(axes, ranked, dict.fromkeys(best, 1.0))
  axes.set_title(_explain_bars(report), loc="left", fontsize=9)
  axes.set_ylabel(plots.plain(report.value_name))
  axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
  _label_curves(axes, ranked, gap=_LABEL_INCHES / (height - 0.2))
  if has_close:
    below = grid[1, 0]
    percent = {rate: value / 100 for rate, value in best.items()}
    _draw_curves(below, ranked, percent, shown=is_close)
    below.set_ylim(100 * (1 - 1.2 * _CLOSE), 101.5)
    below.set_ylabel("share of the best (%)")
    text = f"those that end within {100 * _CLOSE:g} % of the best"
    below.set_title(text, loc="left", fontsize=9)
  grid[-1, 0].set_xlabel(plots.plain(report.rate_name))
  return fig


def _draw_curves(
    axes: Any,
    ranked: Sequence[content.Curve],
    units: Mapping[float, float],
    *,
    shown: Sequence[bool] | None = None,
) -> None:
  """Draws values in `units`, by rate; of the `shown` curves, or all."""
  for i, curve in enumerate(ranked):
    if shown and not shown[i]:
      continue
    points = curve.points
    bars: list[Any] | None = None  # A single run has no interval.
    if any(p.low is not None for p in points):
      bars = [_bar(p, units[p.rate]) for p in points]
    axes.errorbar(
        [p.rate for p in points],
        [p.value / units[p.rate] for p in points],
        yerr=bars and list(zip(*bars, strict=True)),
        color=_LINE_COLOURS[i % len(_LINE_COLOURS)],
        linestyle=_LINE_STYLES[i // len(_LINE_COLOURS) % len(_LINE_STYLES)],
        marker=_MARKERS[i % len(_MARKERS)],
        markersize=4,
        linewidth=1.2,
        elinewidth=0.8,
        capsize=2,
    )


class _ErrorBar(NamedTuple):
  down: float
  up: float


def _bar(point: content.Point, unit: float) -> _ErrorBar:
  """Returns the error bar of a point, relative to its value, in `unit`."""
  if point.low is None or point.high is None:
    return _ErrorBar(0.0, 0.0)
  low = point.value - max(0.0, point.low)
  return _ErrorBar(low / unit, (point.high - point.value) / unit)


def _label_curves(axes: Any, ranked: Sequence[content.Curve], *, gap: float) -> None:
  """Writes the name of each curve right of its end, at least `gap` apart.

  `gap` is a share of the axis.
  """
  top = axes.get_ylim()[1]
  ends = [curve.points[-1] for curve in ranked]
  heights = _spread([end.value / top for end in ends], gap=gap)
  for i, (curve, end) in enumerate(zip(ranked, ends, strict=True)):
    colour = _LINE_COLOURS[i % len(_LINE_COLOURS)]
    line = dict(arrowstyle="-", color=colour, linewidth=0.5, shrinkB=3)
    axes.annotate(
        plots.plain(curve.policy),
        (end.rate, end.value),
        xytext=(1.04, heights[i]),
        textcoords="axes fraction",
        va="center",
        color=colour,
        arrowprops=line | dict(relpos=(0.0, 0.5), shrinkA=0),
        annotation_clip=False,
    )


def _spread(targets: Sequence[float], *, gap: float) -> list[float]:
  """Returns places from 0 to 1 closest to `targets`, at least `gap` apart.

  `targets` decrease. Minimises the sum of squares.
  """
  from scipy import optimize  # Takes long to import.

  wanted = [target + i * gap for i, target in enumerate(targets)]
  places = optimize.isotonic_regression(wanted, increasing=False).x
  lowest = gap * (len(targets) - 0.5)
  return [max(lowest, min(1.0 - gap / 2, place)) - i * gap for i, place in enumerate(places)]


def _explain_bars(report: content.Page) -> str:
  counts = {p.num_runs for curve in report.curves for p in curve.points}
  several = " to ".join(str(n) for n in sorted({min(counts), max(counts)}))
  if max(counts) == 1:
    return "single runs, which have no intervals"
  return f"means of {several} runs; bars: {report.bars}"


def draw_node_time(runs: Sequence[content.ReportRun]) -> Any:
  """Returns a figure with a bar for each run: where its nodes' time went."""
  patches = plots.load("patches")

  fig, [[axes]] = plots.new_figure((10, 1.9 + 0.42 * len(runs)))
  left = [0.0] * len(runs)
  style = dict(edgecolor="white", linewidth=0.5)
  handles = []
  for kind, (colour, _) in palette.KINDS.items():
    shares = [100 * run.account.node_time.shares()[kind] for run in runs]
    axes.barh(range(len(runs)), shares, left=left, color=colour, **style)
    left = [a + b for a, b in zip(left, shares, strict=True)]
    if any(shares):
      handles.append(patches.Patch(color=colour, label=kind))
  axes.set_yticks(range(len(runs)), [plots.plain(run.name) for run in runs])
  axes.invert_yaxis()
  axes.set_xlim(0, 100)
  axes.set_xlabel("share of the nodes' time (%)")
  plots.add_legend(fig, handles)
  return fig


def time_unit(span_secs: float) -> TimeUnit:
  """Returns the unit for a time axis of `span_secs`."""
  return next((u for u in _UNITS if span_secs >= 2 * u.secs), _UNITS[-1])


class _Bins(NamedTuple):
  edges_secs: np.ndarray
  means: np.ndarray
  lows: np.ndarray
  highs: np.ndarray


def _bin(course: content.Course) -> _Bins:
  """Returns samples per second in equal bins of time.

  Without bins, short pauses would hide the rest.
  """
  edges = np.linspace(course.secs[0], course.secs[-1], _NUM_BINS + 1)
  cuts = np.union1d(edges, course.secs)  # The rate is constant in between.
  pieces = np.searchsorted(course.secs, cuts[:-1], side="right") - 1
  rates = np.asarray(course.samples_per_sec)[pieces]
  firsts = np.searchsorted(cuts, edges[:-1])
  samples = np.add.reduceat(rates * np.diff(cuts), firsts)
  lows = np.minimum.reduceat(rates, firsts)
  highs = np.maximum.reduceat(rates, firsts)
  return _Bins(edges, samples / np.diff(edges), lows, highs)


def _draw_events(axes: Any, events: Sequence[content.RunEvent], unit_secs: float) -> None:
  """Draws a row of marks for each rung taken."""
  taken = {event.rung for event in events}
  rungs = [rung for rung in _RUNG_COLOURS if rung in taken]
  rungs += sorted(taken - set(rungs))
  for row, rung in enumerate(rungs):
    times = [e.secs / unit_secs for e in events if e.rung == rung]
    style = dict(linestyle="", marker="|", markersize=12)
    colour = _RUNG_COLOURS.get(rung, _SPARE_COLOUR)
    axes.plot(times, [row] * len(times), color=colour, **style)
  labels = [plots.plain(rung) or "no rung" for rung in rungs]
  axes.set_yticks(range(len(rungs)), labels)
  axes.set_ylim(len(rungs) - 0.4, -0.6)
  axes.set_ylabel("rung taken")
