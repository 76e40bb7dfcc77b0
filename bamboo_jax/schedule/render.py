"""Draws a timeline as text, one line per node."""

import collections
from collections.abc import Sequence

from bamboo_jax.schedule import instruction as instruction_lib, timeline as timeline_lib

Op = instruction_lib.Op


def render_grid(timeline: timeline_lib.Timeline, *, max_columns: int = 120) -> str:
  """Returns a picture of passes over time, such as `F0 F1 .. B0   `.

  A pass is labelled with its mnemonic and microbatch, and its stage on nodes
  with several stages; short passes with the mnemonic only, or not at all. Dots
  are time without a pass. The last line gives the scale. The grid is at most
  `max_columns` wide, at least 20; narrower if all labels fit.
  """
  if max_columns < 20:
    raise ValueError(f"max_columns must be at least 20, got {max_columns}.")
  rows = {f"node {node} ": _label(row) for node, row in timeline.rows.items()}
  margin, span_ms = max(map(len, rows)), timeline.span_ms
  # The width of a millisecond at which all labels fit, if there is room.
  columns = limit = max_columns - margin
  passes = [one for row in rows.values() for one in row]
  if span_ms and all(slot.end_ms > slot.start_ms for slot, _ in passes):
    fits = ((len(label) + 1) / (slot.end_ms - slot.start_ms) for slot, label in passes)
    columns = min(limit, round(span_ms * max(fits, default=1.0)))
  scale = columns / span_ms if span_ms else 0.0
  lines = []
  for name, row in rows.items():
    cells = ["."] * columns
    for slot, label in row:
      first, last = round(slot.start_ms * scale), round(slot.end_ms * scale)
      op = slot.instruction.op.value
      texts = (f"{label} ", f"{op} ", op[0], "")
      fitting = next(text for text in texts if len(text) <= last - first)
      cells[first:last] = fitting.ljust(last - first) if fitting else ""
    lines.append(f"{name:{margin}}{''.join(cells)}")
  scale_text = f"{columns} columns are {span_ms:.2f} ms"
  lines.append(f"{'':{margin}}{scale_text}, bubble {100 * timeline.mean_bubble:.1f} %")
  return "\n".join(lines)


def _label(row: Sequence[timeline_lib.Slot]) -> list[tuple[timeline_lib.Slot, str]]:
  """Returns the passes of a node, and their labels."""
  passes = [slot for slot in row if not slot.instruction.is_transfer]
  is_redundant = lambda slot: slot.instruction.op is Op.REDUNDANT_FORWARD
  stages = {(is_redundant(slot), slot.instruction.stage) for slot in passes}
  num_stages = collections.Counter(kind for kind, _ in stages)

  def label(slot: timeline_lib.Slot) -> str:
    i = slot.instruction
    return str(i) if num_stages[is_redundant(slot)] > 1 else f"{i.op.value}{i.microbatch}"

  return [(slot, label(slot)) for slot in passes]
