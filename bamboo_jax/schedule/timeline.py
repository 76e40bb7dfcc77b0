"""The instructions of a step with their times; draws them as text."""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.schedule import instruction as instruction_lib

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op
_MAX_COLUMNS = 120  # Of a picture.


class Slot(NamedTuple):
  """The time of one instruction, in ms after the start of the step.

  A send starts and ends when its value is there, a receive when the value has
  arrived and the node is free: sockets buffer.
  """

  node: base.NodeId
  instruction: Instruction
  start_ms: float
  end_ms: float


@dataclasses.dataclass(frozen=True)
class Timeline:
  """The times of all instructions of a step, or of its rest.

  Attributes:
    slots: All instructions. Rows keep their order, and a send precedes its
      receive, so one thread can drive all nodes in this order.
    nodes: All nodes, also those without an instruction.
    span_ms: Time from the start to the end of the last instruction.
  """

  slots: tuple[Slot, ...]
  nodes: tuple[base.NodeId, ...]
  span_ms: float

  @classmethod
  def of(cls, slots: list[Slot], free_ms: Mapping[base.NodeId, float]) -> "Timeline":
    """Returns the timeline of unsorted slots; `free_ms` is the time at which each node ends."""
    # Stable: sends precede their receives in `slots`, and times follow it.
    slots.sort(key=lambda slot: slot.start_ms)
    return cls(tuple(slots), tuple(free_ms), max(free_ms.values(), default=0.0))

  @functools.cached_property
  def rows(self) -> Mapping[base.NodeId, Sequence[Slot]]:
    """The slots of each node, in order."""
    rows: dict[base.NodeId, list[Slot]] = {node: [] for node in self.nodes}
    for slot in self.slots:
      rows[slot.node].append(slot)
    return rows

  @functools.cached_property
  def instructions(self) -> Mapping[base.NodeId, instruction_lib.Row]:
    """The instructions of each node, in order."""
    return {node: tuple(slot.instruction for slot in row) for node, row in self.rows.items()}

  @property
  def bubbles(self) -> dict[base.NodeId, float]:
    """Fraction of `span_ms` in which a node runs no pass, by node."""
    busy_ms = dict.fromkeys(self.nodes, 0.0)
    for slot in self.slots:
      busy_ms[slot.node] += slot.end_ms - slot.start_ms
    return {n: 1.0 - ms / self.span_ms if self.span_ms else 0.0 for n, ms in busy_ms.items()}

  @property
  def mean_bubble(self) -> float:
    """Mean of `bubbles`."""
    return sum(self.bubbles.values()) / len(self.nodes)

  @property
  def num_redundant(self) -> int:
    """Number of redundant forward passes."""
    return sum(s.instruction.op is Op.REDUNDANT_FORWARD for s in self.slots)

  def __str__(self) -> str:
    return "\n".join(f"{n}: {' '.join(map(str, row))}" for n, row in self.instructions.items())


def linearize(timelines: Sequence[Timeline]) -> tuple[tuple[base.NodeId, Instruction], ...]:
  """Returns the instructions of all pipelines, in an order for one thread.

  Timelines must have no node in common. Sorted by planned start, so that a
  thread that waits for a value has dispatched all that should run meanwhile.
  """
  slots = [slot for timeline in timelines for slot in timeline.slots]
  return tuple((s.node, s.instruction) for s in sorted(slots, key=lambda s: s.start_ms))


def render_grid(timeline: Timeline) -> str:
  """Returns a picture of passes over time, such as `F0 F1 .. B0   `.

  A pass is labelled with its mnemonic and microbatch, and its stage on nodes
  with several stages; short passes with the mnemonic only, or not at all. Dots
  are time without a pass. The last line gives the scale. The grid is narrower than
  a page if all labels fit.
  """
  rows = {f"node {node} ": _label(row) for node, row in timeline.rows.items()}
  margin, span_ms = max(map(len, rows)), timeline.span_ms
  # The width of a millisecond at which all labels fit, if there is room.
  columns = limit = _MAX_COLUMNS - margin
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


def _label(row: Sequence[Slot]) -> list[tuple[Slot, str]]:
  """Returns the passes of a node, and their labels."""
  passes = [slot for slot in row if not slot.instruction.is_transfer]
  is_redundant = lambda slot: slot.instruction.op is Op.REDUNDANT_FORWARD
  stages = {(is_redundant(slot), slot.instruction.stage) for slot in passes}
  num_stages = collections.Counter(kind for kind, _ in stages)

  def label(slot: Slot) -> str:
    i = slot.instruction
    return str(i) if num_stages[is_redundant(slot)] > 1 else f"{i.op.value}{i.microbatch}"

  return [(slot, label(slot)) for slot in passes]
