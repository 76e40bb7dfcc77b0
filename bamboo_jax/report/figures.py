"""Figures of a report for papers, drawn with Matplotlib from its JSON."""

from collections.abc import Iterator, Mapping, Sequence
import itertools
import pathlib
import re
from typing import Any, NamedTuple

from bamboo_jax.metrics import palette, plots

# The cheapest rung first.
_RUNG_COLOURS = {
    "none": palette.GREY,
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
_CLOSE = 0.1  # Values within this share of the best get a panel of their own.
_LABEL_INCHES = 0.22  # From a curve's label to the next.


class TimeUnit(NamedTuple):
  """A unit of time axes."""

  secs: float
  name: str


# The largest unit that fits twice is used.
_UNITS = (TimeUnit(3600.0, "hours"), TimeUnit(60.0, "minutes"), TimeUnit(1.0, "seconds"))


def save_all(
    report: Mapping[str, Any], folder: pathlib.Path, formats: Sequence[str]
) -> list[pathlib.Path]:
  """Draws all figures of a report into a folder; returns the files. Raises `OSError`."""
  runs, figures = report["runs"], {}
  if charged := [run for run in runs if run["time"]["node_secs"]]:
    figures["node_time"] = draw_node_time(charged)
  if any(point[2] is not None for run in runs for point in run["curve"]):
    figures["losses"] = draw_losses(runs)
  for name, series in report["series"].items():
    figures[name] = draw_series(series)
  for run in runs:
    if len(run["curve"]) > 1:
      stem = "run_" + re.sub(r"[^a-z0-9]+", "_", run["head"]["run"].lower()).strip("_")
      figures[f"{stem}_{len(figures)}" if stem in figures else stem] = draw_course(run)
  return [
      path
      for name, figure in figures.items()
      for path in plots.save_figure(figure, folder / name, formats)
  ]


def draw_course(run: Mapping[str, Any]) -> Any:
  """Returns a figure of a run over time."""
  _, secs, _, rates, nodes, usd, _ = zip(*run["curve"], strict=True)
  unit_secs, unit = time_unit(secs[-1] - secs[0])
  times = [x / unit_secs for x in secs]
  rows = [(rates, f"{run['head']['rate']}/s"), (nodes, "live nodes")]
  rows += [(usd, "cost ($)")] if usd[-1] is not None else []
  events = [e for e in run["recoveries"] if e.get("train_secs") is not None]
  parts = len(rows) + bool(events)
  fig, grid = plots.new_figure((11, 1.9 * parts), parts, sharex=True)
  for axes, (values, label) in zip(grid[:, 0], rows, strict=False):
    known = [0.0 if value is None else value for value in values]
    if label.startswith("cost"):
      axes.plot(times, known, color=palette.GREEN)
    else:  # A point has the mean since the one before.
      axes.stairs(known[1:], times, baseline=None, linewidth=0.9, color=palette.BLUE)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
  if events:
    _draw_events(grid[-1, 0], events, unit_secs)
  grid[-1, 0].margins(x=0.01)
  grid[-1, 0].set_xlabel(f"time ({unit})")
  grid[0, 0].set_title(plots.plain(run["head"]["run"]), loc="left")
  fig.align_ylabels(grid[: len(rows), 0])
  return fig


def draw_losses(runs: Sequence[Mapping[str, Any]]) -> Any:
  """Returns a figure of the losses of runs, by step, and of the steps with deaths."""
  fig, [[axes]] = plots.new_figure((8, 4.2))
  for (colour, style), run in zip(_styles(), runs, strict=False):
    points = [point for point in run["curve"] if point[2] is not None]
    if points:
      steps, _, losses, *_ = zip(*points, strict=True)
      name = plots.plain(run["head"]["run"])
      axes.plot(steps, losses, color=colour, linestyle=style, linewidth=1.2, label=name)
    for recovery in run["recoveries"]:
      if recovery["step"] is not None:
        axes.axvline(recovery["step"], color=colour, linewidth=0.8, alpha=0.35)
  axes.set_ylabel("loss (nats per token); a vertical line: a death")
  axes.set_xlabel("step")
  axes.xaxis.set_major_locator(plots.count_locator())
  plots.add_legend(fig, axes.get_legend_handles_labels()[0], side="upper")
  return fig


def _styles() -> Iterator[tuple[str, str]]:
  pairs = itertools.product(_LINE_STYLES, _LINE_COLOURS)
  return itertools.cycle((colour, style) for style, colour in pairs)


Curves = Sequence[tuple[str, Sequence[Sequence[Any]]]]  # Points: x, y, low, high.


def draw_series(series: Mapping[str, Any]) -> Any:
  """Returns a figure of a series, such as value against preemption rate.

  Each line is labelled at its end, in the order of the values there. If several
  end close to the best, which a scale from 0 hides, a second panel enlarges those.
  """
  ranked = sorted(series["lines"].items(), key=lambda line: line[1][-1][1], reverse=True)
  best: dict[float, float] = {}
  for x, y, *_ in (point for _, points in ranked for point in points):
    best[x] = max(y, best.get(x, y))
  ends = [points[-1] for _, points in ranked]
  is_close = [y > (1 - _CLOSE) * best[x] for x, y, *_ in ends]
  has_close = sum(is_close) > 1
  height = max(3.6, _LABEL_INCHES * len(ranked) + 0.4)
  shares = (height, 2.4) if has_close else (height,)
  fig, grid = plots.new_figure(
      (9, sum(shares) + 0.9), len(shares), sharex=True, height_ratios=shares
  )
  axes = grid[0, 0]
  _draw_curves(axes, ranked, dict.fromkeys(best, 1.0))
  axes.set_title(plots.plain(series["note"]), loc="left", fontsize=9)
  axes.set_ylabel(plots.plain(series["y"]))
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
  grid[-1, 0].set_xlabel(plots.plain(series["x"]))
  return fig


def _draw_curves(
    axes: Any, ranked: Curves, units: Mapping[float, float], *, shown: Sequence[bool] | None = None
) -> None:
  """Draws values in `units`, by rate; of the `shown` curves, or all."""
  for i, ((colour, style), (_, points)) in enumerate(zip(_styles(), ranked, strict=False)):
    if shown and not shown[i]:
      continue
    bars: list[Any] | None = None  # A single run has no interval.
    if any(low is not None for *_, low, _ in points):
      bars = [
          (0.0, 0.0) if low is None else ((y - max(0.0, low)) / units[x], (high - y) / units[x])
          for x, y, low, high in points
      ]
    axes.errorbar(
        [x for x, *_ in points],
        [y / units[x] for x, y, *_ in points],
        yerr=bars and list(zip(*bars, strict=True)),
        color=colour,
        linestyle=style,
        marker=_MARKERS[i % len(_MARKERS)],
        markersize=4,
        linewidth=1.2,
        elinewidth=0.8,
        capsize=2,
    )


def _label_curves(axes: Any, ranked: Curves, *, gap: float) -> None:
  """Writes the name of each curve right of its end, at least `gap` apart.

  `gap` is a share of the axis.
  """
  top = axes.get_ylim()[1]
  heights = _spread([points[-1][1] / top for _, points in ranked], gap=gap)
  for i, ((colour, _), (name, points)) in enumerate(zip(_styles(), ranked, strict=False)):
    line = dict(arrowstyle="-", color=colour, linewidth=0.5, shrinkB=3)
    axes.annotate(
        plots.plain(name),
        tuple(points[-1][:2]),
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


def draw_node_time(runs: Sequence[Mapping[str, Any]]) -> Any:
  """Returns a figure with a bar for each run: where its nodes' time went."""
  patches = plots.load("patches")

  fig, [[axes]] = plots.new_figure((10, 1.9 + 0.42 * len(runs)))
  left = [0.0] * len(runs)
  style = dict(edgecolor="white", linewidth=0.5)
  handles = []
  for kind, (colour, _) in palette.KINDS.items():
    times = [run["time"] for run in runs]
    shares = [100 * time["parts"][kind] / time["node_secs"] for time in times]
    axes.barh(range(len(runs)), shares, left=left, color=colour, **style)
    left = [a + b for a, b in zip(left, shares, strict=True)]
    if any(shares):
      handles.append(patches.Patch(color=colour, label=kind))
  axes.set_yticks(range(len(runs)), [plots.plain(run["head"]["run"]) for run in runs])
  axes.invert_yaxis()
  axes.set_xlim(0, 100)
  axes.set_xlabel("share of the nodes' time (%)")
  plots.add_legend(fig, handles)
  return fig


def time_unit(span_secs: float) -> TimeUnit:
  """Returns the unit for a time axis of `span_secs`."""
  return next((u for u in _UNITS if span_secs >= 2 * u.secs), _UNITS[-1])


def _draw_events(axes: Any, events: Sequence[Mapping[str, Any]], unit_secs: float) -> None:
  """Draws a row of marks for each rung taken."""
  taken = {event["rung"] for event in events}
  rungs = [rung for rung in _RUNG_COLOURS if rung in taken]
  rungs += sorted(taken - set(rungs))
  for row, rung in enumerate(rungs):
    times = [e["train_secs"] / unit_secs for e in events if e["rung"] == rung]
    style = dict(linestyle="", marker="|", markersize=12)
    colour = _RUNG_COLOURS.get(rung, _SPARE_COLOUR)
    axes.plot(times, [row] * len(times), color=colour, **style)
  labels = [plots.plain(rung) for rung in rungs]
  axes.set_yticks(range(len(rungs)), labels)
  axes.set_ylim(len(rungs) - 0.4, -0.6)
  axes.set_ylabel("rung taken")
