"""Draws a timeline as text, one line per node."""

from bamboo_jax import base
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
  rows = {
      node: [slot for slot in row if not slot.instruction.is_transfer]
      for node, row in timeline.rows.items()
  }
  margin = max(len(f"node {node} ") for node in rows)
  columns = _num_columns(rows, timeline.span_ms, max_columns - margin)
  scale = columns / timeline.span_ms if timeline.span_ms else 0.0
  lines = []
  for node, row in rows.items():
    cells = ["."] * columns
    for slot in row:
      first, last = round(slot.start_ms * scale), round(slot.end_ms * scale)
      label = _label(slot.instruction, row)
      cells[first:last] = _fit(label, slot.instruction, last - first)
    lines.append(f"{f'node {node} ':{margin}}{''.join(cells)}")
  lines.append(
      f"{'':{margin}}{columns} columns are {timeline.span_ms:.4g} ms, bubble "
      f"{100 * timeline.mean_bubble:.1f} %"
  )
  return "\n".join(lines)


def _num_columns(
    rows: dict[base.NodeId, list[timeline_lib.Slot]], span_ms: float, limit: int
) -> int:
  """Returns the width at which all labels fit, or `limit`."""
  wanted = 1.0
  for row in rows.values():
    for slot in row:
      took_ms = slot.end_ms - slot.start_ms
      room = len(_label(slot.instruction, row)) + 1
      if took_ms * limit < room * span_ms:
        return limit
      wanted = max(wanted, room * span_ms / took_ms)
  return min(limit, round(wanted))


def _label(i: instruction_lib.Instruction, row: list[timeline_lib.Slot]) -> str:
  is_redundant = i.op is Op.REDUNDANT_FORWARD
  stages = {
      slot.instruction.stage
      for slot in row
      if (slot.instruction.op is Op.REDUNDANT_FORWARD) == is_redundant
  }
  return str(i) if len(stages) > 1 else f"{i.op.value}{i.microbatch}"


def _fit(label: str, i: instruction_lib.Instruction, room: int) -> str:
  """Returns the longest label that fits, padded to `room` characters."""
  for text in (f"{label} ", f"{i.op.value} ", i.op.value[0]):
    if len(text) <= room:
      return text.ljust(room)
  return ""
