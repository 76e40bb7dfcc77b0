"""A figure of one step: the timeline of each node, planned and measured."""

import collections
from collections.abc import Sequence
import itertools
import re
from typing import Any

from bamboo_jax.metrics import palette, plots, slot as slot_lib

_COLOURS = {name: shade.light for name, shade in palette.PASSES.items()}
_PASSES = {
    "forward": "forward pass",
    "backward": "backward pass",
    "redundant": "redundant forward pass (1RF0: stage 1, microbatch 0)",
}
_SPARE_COLOURS = (palette.YELLOW, palette.PURPLE)  # Of unknown categories.
_WIDTH, _ROW = 14.0, 0.36  # Width of the figure, height of a row, inches.
_FONT, _SMALL_FONT = 7, 6  # Of horizontal and vertical labels, points.
_MOST_UNLIKE = 3.0  # Ratio of parts that share a time scale.
_AXES_WIDTH = 0.88 * 72 * _WIDTH  # Points, minimum.


def draw_schedule(
    title: str,
    *,
    planned: Sequence[slot_lib.TrackSlot] = (),
    measured: Sequence[slot_lib.TrackSlot] = (),
) -> Any:
  """Returns a step: planned above measured, with a key to the names of slots.

  One row per track, in the order of the planned slots; both parts have the
  same time scale unless that would make one too narrow. Raises `ValueError` without slots.
  """
  parts = [p for p in (("planned", planned), ("measured", measured)) if p[1]]
  if not parts:
    raise ValueError("A schedule needs slots, planned or measured.")
  order = [*dict.fromkeys(s.track for s in (*planned, *measured))]
  rows = [len(slot_lib.tracks(slots)) for _, slots in parts]
  spans_ms = [max(slot.end_ms for slot in slots) for _, slots in parts]
  has_one_scale = max(spans_ms) <= _MOST_UNLIKE * min(spans_ms)
  height = 1.9 + 0.8 * len(parts) + _ROW * sum(rows)
  options: dict[str, Any] = dict(sharex=has_one_scale, height_ratios=rows)
  fig, grid = plots.new_figure((_WIDTH, height), len(parts), **options)
  fig.suptitle(plots.plain(title))
  colours = _colours((*planned, *measured))
  labelled = []
  for axes, (name, slots), end_ms in zip(grid[:, 0], parts, spans_ms, strict=True):
    text = f"{name}, {end_ms:.1f} ms"
    if not has_one_scale:
      text += ", on its own scale of time"
    if name == "measured" and len(slot_lib.tracks(slots)) < max(rows):
      text += "; a process knows the times of its own nodes only"
    axes.set_title(text, loc="left", fontsize=10)
    span_ms = max(spans_ms) if has_one_scale else end_ms
    labelled += _draw_rows(axes, slots, order, colours=colours, span_ms=span_ms)
  grid[-1, 0].set_xlabel("time after the start of the step (ms)")
  plots.add_legend(fig, _key(colours, labelled))
  return fig


def draw_planned(axes: Any, slots: Sequence[slot_lib.TrackSlot]) -> None:
  """Draws a planned step into a part of a figure, with a short legend."""
  colours = _colours(slots)
  span_ms = max(slot.end_ms for slot in slots)
  order = slot_lib.tracks(slots)
  _draw_rows(axes, slots, order, colours=colours, span_ms=span_ms)
  title = "A step, as planned"
  if "redundant" in colours:
    title += ": in its bubbles each node repeats forward passes of the next one"
  axes.set_title(title, loc="left", fontsize=10, pad=22)
  axes.set_xlabel("time (ms)")
  patches = plots.load("patches")
  axes.legend(
      handles=[
          patches.Patch(color=colour, label=_PASSES.get(category, category))
          for category, colour in colours.items()
      ],
      loc="lower left",
      bbox_to_anchor=(0.0, 1.0),
      borderaxespad=0.2,
      ncols=len(colours),
      frameon=False,
      fontsize=9,
  )


def _draw_rows(
    axes: Any,
    slots: Sequence[slot_lib.TrackSlot],
    order: Sequence[str],
    *,
    colours: dict[str, str],
    span_ms: float,
) -> list[slot_lib.TrackSlot]:
  """Draws the slots, tracks in this order; returns the labelled ones."""
  there = {slot.track for slot in slots}
  tracks = [track for track in order if track in there]
  rows = {track: row for row, track in enumerate(tracks)}
  # One collection for all boxes of a row and colour, for speed.
  boxes, labelled = collections.defaultdict(list), []
  for slot in slots:
    width_ms = slot.end_ms - slot.start_ms
    boxes[rows[slot.track], slot.category].append((slot.start_ms, width_ms))
    angle = _fit(slot.name, width_ms / (span_ms or 1.0) * _AXES_WIDTH)
    if angle is not None:
      labelled.append(slot)
      axes.text(
          slot.start_ms + width_ms / 2,
          rows[slot.track],
          slot.name,
          ha="center",
          va="center",
          rotation=angle,
          fontsize=_SMALL_FONT if angle else _FONT,
          color=palette.ink(colours[slot.category]),
          clip_on=True,
      )
  edge = dict(edgecolor="white", linewidth=0.4)
  for (row, category), ranges in boxes.items():
    place = (row - 0.45, 0.9)
    axes.broken_barh(ranges, place, facecolor=colours[category], **edge)
  axes.set_yticks(range(len(tracks)), tracks)
  axes.set_ylim(len(tracks) - 0.4, -0.6)
  axes.set_xlim(min(0.0, min(s.start_ms for s in slots)), span_ms or 1.0)
  axes.tick_params(axis="y", length=0)
  axes.grid(visible=False, axis="y")
  axes.spines["left"].set_visible(False)
  return labelled


def _fit(name: str, width: float) -> int | None:
  """Returns the angle at which a name fits a box of `width` points, or None."""
  length = 0.68 * len(name)  # In font sizes, for digits and capitals.
  if length * _FONT + 2 < width:
    return 0
  is_low = length * _SMALL_FONT < 0.9 * 72 * _ROW
  return 90 if _SMALL_FONT + 2 < width and is_low else None


def _colours(slots: Sequence[slot_lib.TrackSlot]) -> dict[str, str]:
  """Returns the colour of each category present, in order of the legend."""
  present = {slot.category for slot in slots}
  known = [c for c in _COLOURS if c in present]
  unknown = sorted(present - _COLOURS.keys())
  spare = zip(unknown, itertools.cycle(_SPARE_COLOURS), strict=False)
  return {c: _COLOURS[c] for c in known} | dict(spare)


def _key(colours: dict[str, str], labelled: Sequence[slot_lib.TrackSlot]) -> list[Any]:
  """Returns legend entries: one label of each form, else the category."""
  patches = plots.load("patches")

  examples: dict[str, dict[str, slot_lib.TrackSlot]] = {}
  for slot in labelled:
    if slot.meaning:
      form = re.sub(r"\d+", "0", slot.name)  # Equal for all of a kind.
      examples.setdefault(slot.category, {}).setdefault(form, slot)
  entries = []
  for category, colour in colours.items():
    found = examples.get(category, {}).values()
    texts = [f"{s.name}: {s.meaning}" for s in found] or [category]
    entries += [patches.Patch(color=colour, label=text) for text in texts]
  return entries
