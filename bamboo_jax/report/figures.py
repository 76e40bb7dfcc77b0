"""Figures of a report for papers, drawn with Matplotlib from its JSON."""

import collections
from collections.abc import Callable, Mapping, Sequence
import functools
import itertools
import pathlib
import re
from typing import Any

from bamboo_jax.metrics import palette, plots, rows as rows_lib

Value = Mapping[str, Any]  # JSON.

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
# Losses of several runs may be equal: the first lies below the others.
_LOSS_LINES = (
    dict(color=palette.SKY, linewidth=4.0, alpha=0.6),
    dict(color=palette.BLUE, linewidth=1.2),
    dict(color=palette.RED, linewidth=1.2, linestyle="--"),
    dict(color=palette.GREEN, linewidth=1.2, linestyle=":"),
)
# Slots of a step, by category; an example says what a name means.
_SLOTS = {
    "forward": "forward pass (0F1: stage 0, microbatch 1)",
    "backward": "backward pass (0B1)",
    "redundant": "redundant forward pass (1RF0: stage 1, microbatch 0)",
    "transfer": "sent (S>) and received (R<): outputs (A), gradients (G)",
}
_ROW_INCHES = 0.36  # For a node in a step.
_SLOT_FONT = 7  # Points.
_MOST_UNLIKE = 3.0  # Ratio of parts that share a time scale.
_CLOSE = 0.1  # Values within this share of the best get a panel of their own.


# The largest unit that fits twice is used.
_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def save_all(report: Value, folder: pathlib.Path, formats: Sequence[str]) -> list[pathlib.Path]:
  """Draws all figures of a report into a folder; returns the files. Raises `OSError`."""
  return [
      path
      for name, draw in plan(report).items()
      for path in plots.save_figure(draw(), folder / name, formats)
  ]


def plan(report: Value) -> dict[str, Callable[[], Any]]:
  """Returns the functions that draw the figures of a report, by name of the file."""
  runs, figures = report["runs"], dict[str, Callable[[], Any]]()
  if charged := [run for run in runs if run["time"]["node_secs"]]:
    figures["node_time"] = functools.partial(draw_node_time, charged)
  if any(point[2] is not None for run in runs for point in run["curve"]):
    figures["losses"] = functools.partial(draw_losses, runs)
  for name, series in report["series"].items():
    figures[name] = functools.partial(draw_series, series)
  if len(runs) == 1 and runs[0]["rows"] and runs[0]["rows"]["measured"]:
    figures["schedule"] = functools.partial(draw_step, runs[0]["rows"])
  for run in runs:
    if len(run["curve"]) > 1:
      stem = "run_" + re.sub(r"[^a-z0-9]+", "_", run["head"]["run"].lower()).strip("_")
      name = f"{stem}_{len(figures)}" if stem in figures else stem
      figures[name] = functools.partial(draw_course, run)
  return figures


def draw_course(run: Value) -> Any:
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
    below, taken = grid[-1, 0], {event["rung"] for event in events}
    rungs = [rung for rung in _RUNG_COLOURS if rung in taken]
    rungs += sorted(taken - set(rungs))
    for row, rung in enumerate(rungs):
      times = [e["train_secs"] / unit_secs for e in events if e["rung"] == rung]
      style = dict(linestyle="", marker="|", markersize=12)
      colour = _RUNG_COLOURS.get(rung, _SPARE_COLOUR)
      below.plot(times, [row] * len(times), color=colour, **style)
    below.set_yticks(range(len(rungs)), [plots.plain(rung) for rung in rungs])
    below.set_ylim(len(rungs) - 0.4, -0.6)
    below.set_ylabel("rung taken")
  grid[-1, 0].margins(x=0.01)
  grid[-1, 0].set_xlabel(f"time ({unit})")
  grid[0, 0].set_title(plots.plain(run["head"]["run"]), loc="left")
  fig.align_ylabels(grid[: len(rows), 0])
  return fig


def draw_losses(runs: Sequence[Value], planned: Sequence[Any] = ()) -> Any:
  """Returns a figure of the losses of runs, by step, and of the steps with deaths and joins.

  Above them stands a step as it was `planned`, if given, see `metrics.rows`.
  """
  slots = [rows_lib.TrackSlot(*slot) for slot in planned]
  heights = [0.3 * len(rows_lib.tracks(slots)) + 1.0] * bool(slots) + [4.0]
  fig, grid = plots.new_figure((8, sum(heights)), len(heights), height_ratios=heights)
  axes = grid[-1, 0]
  lines = itertools.cycle(_LOSS_LINES[len(runs) == 1 :])
  for style, run in zip(lines, runs, strict=False):
    name = f"{plots.plain(run['head']['run'])}: " * (len(runs) > 1)
    points = [(step, loss) for step, _, loss, *_ in run["curve"] if loss is not None]
    if points:
      axes.plot(*zip(*points, strict=True), label=f"{name}train", **style)
    if found := [point for point in run.get("evaluations", ()) if point[1] is not None]:
      dots = dict(linestyle="", marker="o", markeredgecolor=_SPARE_COLOUR, color=style["color"])
      axes.plot(*zip(*found, strict=True), label=f"{name}evaluation", **dots)
    joins = [event["step"] for event in run["events"] if event["kind"] == "join"]
    deaths = [recovery["step"] for recovery in run["recoveries"]]
    for what, steps, colour in (("deaths", deaths, palette.RED), ("joins", joins, palette.GREEN)):
      label = f"{name}steps with {what}"
      for step in sorted({*steps} - {None}):
        axes.axvline(step, zorder=0.5, color=colour, linewidth=0.8, alpha=0.5, label=label)
        label = ""  # One entry of the legend for all.
  axes.set_ylabel("loss (nats per token)")
  axes.set_xlabel("step")
  axes.xaxis.set_major_locator(plots.count_locator())
  handles = axes.get_legend_handles_labels()[0]
  if slots:
    above = grid[0, 0]
    _draw_slots(above, slots, rows_lib.tracks(slots), max(slot.end_ms for slot in slots))
    above.set_title("A step, as planned", loc="left", fontsize=10)
    above.set_xlabel("time (ms)")
    axes.legend(handles=handles, loc="upper right", frameon=False)
    handles = _slot_key(slots)
  plots.add_legend(fig, handles, side="upper")
  return fig


def plan_of(run: Value) -> list[Any]:
  """Returns the planned slots of the first pipeline of a run."""
  names = {node["name"] for node in run["nodes"] if node["row"] == "pipeline 0"}
  return [slot for slot in (run["rows"] or {}).get("planned", ()) if slot[0] in names]


def draw_step(rows: Value) -> Any:
  """Returns a figure of a step, see `metrics.rows.Step`: planned above measured, and a key.

  Both have the same time scale unless that would make one too narrow.
  """
  planned, measured = ([rows_lib.TrackSlot(*s) for s in rows[k]] for k in ("planned", "measured"))
  parts = [part for part in (("planned", planned), ("measured", measured)) if part[1]]
  order = [*dict.fromkeys(slot.track for slot in (*planned, *measured))]
  spans_ms = [max(slot.end_ms for slot in slots) for _, slots in parts]
  is_shared = max(spans_ms) <= _MOST_UNLIKE * min(spans_ms)
  height = 1.9 + len(parts) * (0.8 + _ROW_INCHES * len(order))
  fig, grid = plots.new_figure((14, height), len(parts), sharex=is_shared)
  title = f"Step {rows['step']}"
  if dead := [name for name, _ in rows["deaths"]]:
    title += f", in which {', '.join(dead)} died: planned before that"
  fig.suptitle(plots.plain(title))
  for axes, (name, slots), end_ms in zip(grid[:, 0], parts, spans_ms, strict=True):
    scale = "" if is_shared else ", on its own scale of time"
    axes.set_title(f"{name}, {end_ms:.1f} ms{scale}", loc="left", fontsize=10)
    _draw_slots(axes, slots, order, max(spans_ms) if is_shared else end_ms)
  grid[-1, 0].set_xlabel("time after the start of the step (ms)")
  plots.add_legend(fig, _slot_key([*planned, *measured]))
  return fig


def _draw_slots(
    axes: Any, slots: Sequence[rows_lib.TrackSlot], order: Sequence[str], span_ms: float
) -> None:
  """Draws a row for each track, in this order; names stand where they fit."""
  # One collection for all boxes of a row and category, for speed.
  boxes: dict[tuple[int, str], list[tuple[float, float]]] = collections.defaultdict(list)
  width = 0.85 * 72 * axes.figure.get_figwidth() / (span_ms or 1.0)  # Points of a millisecond.
  for slot in slots:
    row, length_ms = order.index(slot.track), slot.end_ms - slot.start_ms
    boxes[row, slot.category].append((slot.start_ms, length_ms))
    if 0.68 * len(slot.name) * _SLOT_FONT + 2 < width * length_ms:
      style = dict(ha="center", va="center", fontsize=_SLOT_FONT, clip_on=True)
      ink = palette.ink(palette.PASSES[slot.category].light)
      axes.text(slot.start_ms + length_ms / 2, row, slot.name, color=ink, **style)
  edge = dict(edgecolor="white", linewidth=0.4)
  for (row, category), ranges in boxes.items():
    colour = palette.PASSES[category].light
    axes.broken_barh(ranges, (row - 0.45, 0.9), facecolor=colour, **edge)
  axes.set_yticks(range(len(order)), order)
  axes.set_ylim(len(order) - 0.4, -0.6)
  axes.set_xlim(min(0.0, min(slot.start_ms for slot in slots)), span_ms or 1.0)
  axes.tick_params(axis="y", length=0)
  axes.grid(visible=False, axis="y")
  axes.spines["left"].set_visible(False)


def _slot_key(slots: Sequence[rows_lib.TrackSlot]) -> list[Any]:
  patches, present = plots.load("patches"), {slot.category for slot in slots}
  return [
      patches.Patch(color=palette.PASSES[category].light, label=text)
      for category, text in _SLOTS.items()
      if category in present
  ]


Curves = Sequence[tuple[str, Sequence[Sequence[Any]]]]  # Points: x, y, low, high.


def draw_series(series: Value) -> Any:
  """Returns a figure of a series, such as value against preemption rate.

  The legend has the lines in the order of their values at the end. If several end
  close to the best, which a scale from 0 hides, a second panel enlarges those.
  """
  ranked = sorted(series["lines"].items(), key=lambda line: line[1][-1][1], reverse=True)
  best: dict[float, float] = {}
  for x, y, *_ in (point for _, points in ranked for point in points):
    best[x] = max(y, best.get(x, y))
  ends = [points[-1] for _, points in ranked]
  is_close = [y > (1 - _CLOSE) * best[x] for x, y, *_ in ends]
  has_close = sum(is_close) > 1
  shares = (3.6, 2.4)[: 1 + has_close]
  height = sum(shares) + 0.9 + 0.1 * len(ranked)  # Of the legend, too.
  fig, grid = plots.new_figure((9, height), len(shares), sharex=True, height_ratios=shares)
  axes = grid[0, 0]
  _draw_curves(axes, ranked, dict.fromkeys(best, 1.0))
  axes.set_title(plots.plain(series["note"]), loc="left", fontsize=9)
  axes.set_ylabel(plots.plain(series["y"]))
  axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
  plots.add_legend(fig, axes.get_legend_handles_labels()[0])
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
  styles = itertools.cycle(itertools.product(_LINE_STYLES, _LINE_COLOURS))
  for i, ((style, colour), (name, points)) in enumerate(zip(styles, ranked, strict=False)):
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
        label=plots.plain(name),
        color=colour,
        linestyle=style,
        marker=_MARKERS[i % len(_MARKERS)],
        markersize=4,
        linewidth=1.2,
        elinewidth=0.8,
        capsize=2,
    )


def draw_node_time(runs: Sequence[Value]) -> Any:
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


def time_unit(span_secs: float) -> tuple[float, str]:
  """Returns the seconds of the unit for a time axis of `span_secs`, and its name."""
  return next((unit for unit in _UNITS if span_secs >= 2 * unit[0]), _UNITS[-1])
