"""PNG figures of a run: its loss, and a schedule planned and measured.

Matplotlib, of the extra `plots`, is imported only when drawing: that takes
longer than many commands.
"""

import collections
from collections.abc import Sequence
import io
import itertools
import os
import types
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import extras
from bamboo_jax.metrics import slot as slot_lib

Points = tuple[Sequence[int], Sequence[float]]

# Okabe and Ito's colours, which most colour-blind readers can tell apart.
# Categories are those of `slot.Slot`; others take the spare colours in order.
_COLOURS = {
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "redundant": "#CC79A7",
    "transfer": "#E69F00",
    "reduce": "#009E73",
    "update": "#D55E00",
    "other": "#999999",
}
_SPARE_COLOURS = ("#F0E442", "#5F4690", "#73AF48", "#94346E", "#333333")
_DARK = ("#0072B2", "#5F4690", "#94346E", "#333333")


def check() -> None:
  """Raises `base.MissingExtraError` if no figure can be drawn."""
  _load("figure")


def _load(name: str) -> types.ModuleType:
  return extras.load(f"matplotlib.{name}", extra="plots", what="Figures")


def plot_loss(
    path: str | os.PathLike[str],
    *,
    train: Points,
    evaluation: Points = ((), ()),
) -> None:
  """Draws the loss over the steps as a PNG, all or nothing.

  `train` and `evaluation` (may be empty) are steps, and mean loss per token in
  nats.
  """
  fig, [[axes]] = new_figure((8, 4.5))
  axes.set(title="Loss", xlabel="step", ylabel="loss (nats per token)")
  axes.plot(*train, color=_COLOURS["backward"], linewidth=1.2, label="train")
  if evaluation[0]:
    style = dict(color=_COLOURS["update"], marker="o", markersize=4)
    axes.plot(*evaluation, label="evaluation", **style)
  ticker = _load("ticker")
  axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  axes.legend(frameon=False)
  save_figure(fig, path)


def plot_schedule(
    path: str | os.PathLike[str],
    *,
    planned: Sequence[slot_lib.Slot] = (),
    measured: Sequence[slot_lib.Slot] = (),
    title: str = "Schedule of a step",
) -> None:
  """Draws a step as a PNG, all or nothing: planned above measured.

  One scale of time, one row per track. Raises `ValueError` without slots.
  """
  parts = [p for p in (("planned", planned), ("measured", measured)) if p[1]]
  if not parts:
    raise ValueError("plot_schedule needs slots, planned or measured.")
  rows = [len(slot_lib.tracks(slots)) for _, slots in parts]
  height = 1.6 + 0.6 * len(parts) + 0.34 * sum(rows)
  options = dict(sharex=True, height_ratios=rows)
  fig, grid = new_figure((14, height), len(parts), **options)
  fig.suptitle(title)
  colours = _colours((*planned, *measured))
  span_ms = max(slot.end_ms for slot in (*planned, *measured))
  for axes, (name, slots) in zip(grid[:, 0], parts, strict=True):
    end_ms = max(slot.end_ms for slot in slots)
    axes.set_title(f"{name}, {end_ms:.1f} ms", loc="left", fontsize=10)
    _draw_rows(axes, slots, colours=colours, span_ms=span_ms)
  grid[-1, 0].set_xlabel("time after the start of the step (ms)")
  _add_legend(fig, colours)
  save_figure(fig, path)


def _draw_rows(
    axes: Any,
    slots: Sequence[slot_lib.Slot],
    *,
    colours: dict[str, str],
    span_ms: float,
) -> None:
  tracks = slot_lib.tracks(slots)
  rows = {track: row for row, track in enumerate(tracks)}
  # One collection for all boxes of a row and colour: thousands are slow.
  boxes = collections.defaultdict(list)
  for slot in slots:
    width_ms = slot.end_ms - slot.start_ms
    boxes[rows[slot.track], slot.category].append((slot.start_ms, width_ms))
    # At this size of figure a character is about 1/190 of the axis wide.
    if width_ms * 190 > span_ms * (len(slot.name) + 0.5):
      axes.text(
          slot.start_ms + width_ms / 2,
          rows[slot.track],
          slot.name,
          ha="center",
          va="center",
          fontsize=7,
          color="white" if colours[slot.category] in _DARK else "black",
          clip_on=True,
      )
  edge = dict(edgecolor="white", linewidth=0.4)
  for (row, category), ranges in boxes.items():
    place = (row - 0.42, 0.84)
    axes.broken_barh(ranges, place, facecolor=colours[category], **edge)
  axes.set_yticks(range(len(tracks)), tracks)
  axes.set_ylim(len(tracks) - 0.4, -0.6)
  axes.set_xlim(min(0.0, min(s.start_ms for s in slots)), span_ms or 1.0)
  axes.tick_params(axis="y", length=0)
  axes.grid(visible=False, axis="y")
  axes.spines["left"].set_visible(False)


def _colours(slots: Sequence[slot_lib.Slot]) -> dict[str, str]:
  """Returns the colour of each category that occurs, in order of legend."""
  present = {slot.category for slot in slots}
  known = [c for c in _COLOURS if c in present]
  unknown = sorted(present - _COLOURS.keys())
  spare = zip(unknown, itertools.cycle(_SPARE_COLOURS), strict=False)
  return {c: _COLOURS[c] for c in known} | dict(spare)


def _add_legend(fig: Any, colours: dict[str, str]) -> None:
  patches = _load("patches")
  handles = [patches.Patch(color=c, label=n) for n, c in colours.items()]
  style = dict(loc="outside lower center", ncols=len(colours), frameon=False)
  fig.legend(handles=handles, **style)


def new_figure(
    size: tuple[float, float], rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Any, Any]:
  """Returns a Matplotlib figure and the array of its axes, all with a grid.

  The size is in inches; `options` are those of `Figure.subplots`.
  """
  fig = _load("figure").Figure(figsize=size, layout="constrained")
  grid = fig.subplots(rows, columns, squeeze=False, **options)
  for axes in grid.flat:
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
  return fig, grid


def save_figure(fig: Any, path: str | os.PathLike[str]) -> None:
  """Writes a Matplotlib figure as a PNG, all or nothing."""
  data = io.BytesIO()
  _load("backends.backend_agg").FigureCanvasAgg(fig).print_png(data)
  base.write_atomically(path, data.getvalue())
