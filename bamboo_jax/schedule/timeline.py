"""Plays a schedule against durations, and rejects one that must not be run.

The worst case is played: a transfer is a rendezvous that starts when both rows
have reached it; the receiver is blocked, while the sender continues, since the
link copies. Buffered or overlapped transfers can only be faster.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import heapq

from bamboo_jax import base
from bamboo_jax.schedule import (
    checker,
    costs as costs_lib,
    footprint,
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
)

Op = instruction_lib.Op
ScheduleError = checker.ScheduleError
Instruction = instruction_lib.Instruction

_OTHER_END = {
    Op.SEND_ACTIVATION: Op.RECV_ACTIVATION,
    Op.RECV_ACTIVATION: Op.SEND_ACTIVATION,
    Op.SEND_GRAD: Op.RECV_GRAD,
    Op.RECV_GRAD: Op.SEND_GRAD,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
  """The time of one instruction, in ms after the start of the schedule.

  Both ends of a transfer start at the same time; a send ends at once.
  """

  node: base.NodeId
  instruction: Instruction
  start_ms: float
  end_ms: float


@dataclasses.dataclass(frozen=True)
class Timeline:
  """The times of all instructions of a schedule.

  Attributes:
    slots: All instructions, row by row.
    span_ms: Time from the start to the end of the last instruction.
    peak_bytes: Peak device memory of each node; see `footprint`.
  """

  slots: tuple[Slot, ...]
  span_ms: float
  peak_bytes: Mapping[base.NodeId, int]

  @functools.cached_property
  def rows(self) -> Mapping[base.NodeId, Sequence[Slot]]:
    """The slots of each node, in order."""
    rows: dict[base.NodeId, list[Slot]] = {node: [] for node in self.peak_bytes}
    for slot in self.slots:
      rows[slot.node].append(slot)
    return rows

  @property
  def bubbles(self) -> dict[base.NodeId, float]:
    """Fraction of `span_ms` in which a node runs no pass, by node."""
    return {node: self._bubble(row) for node, row in self.rows.items()}

  @property
  def mean_bubble(self) -> float:
    """Mean of `bubbles`."""
    return sum(self.bubbles.values()) / len(self.peak_bytes)

  @property
  def num_redundant(self) -> int:
    """Number of redundant forward passes."""
    return sum(s.instruction.op is Op.REDUNDANT_FORWARD for s in self.slots)

  def renumbered(self, *, add_nodes: int, add_microbatches: int) -> "Timeline":
    """Returns the timeline with these offsets added to all numbers.

    For an equal pipeline with other nodes and microbatches.
    """
    slots = []
    for slot in self.slots:
      i = slot.instruction
      other = dataclasses.replace(
          i,
          microbatch=i.microbatch + add_microbatches,
          peer=None if i.peer is None else base.NodeId(i.peer + add_nodes),
      )
      node = base.NodeId(slot.node + add_nodes)
      slots.append(Slot(node, other, slot.start_ms, slot.end_ms))
    return Timeline(
        slots=tuple(slots),
        span_ms=self.span_ms,
        peak_bytes={base.NodeId(n + add_nodes): b for n, b in self.peak_bytes.items()},
    )

  def _bubble(self, row: Sequence[Slot]) -> float:
    busy_ms = sum(slot.end_ms - slot.start_ms for slot in row if not slot.instruction.is_transfer)
    return 1.0 - busy_ms / self.span_ms if self.span_ms else 0.0


def play(
    schedule: instruction_lib.Schedule,
    lines: Sequence[lines_lib.Line],
    *,
    costs: costs_lib.StageCosts,
    holdings: lines_lib.Holdings | None = None,
) -> Timeline:
  """Returns the timeline of a schedule of all `lines`.

  Raises:
    ScheduleError: Work is lost or done twice, an input is missing, sums are out
      of order, a transfer has one end only, or there is a deadlock.
  """
  holdings = holdings or {}
  owned: dict[base.NodeId, set[base.StageId]] = {}
  for line in lines:
    for stage, node in base.by_stage(line.owners):
      owned.setdefault(node, set()).add(stage)
  checkers = {
      node: checker.Checker(node, lines=lines, holdings=holdings.get(node, holdings_lib.NOTHING))
      for node in {*schedule.rows, *owned}
  }
  free_ms, slots = _walk(schedule.rows, costs, checkers)
  for node in sorted(checkers):
    checkers[node].finish()
  return Timeline(
      slots=tuple(slot for row in slots.values() for slot in row),
      span_ms=max(free_ms.values(), default=0.0),
      peak_bytes={
          node: footprint.peak_bytes(
              row,
              owned=owned.get(node, ()),
              costs=costs,
              holdings=holdings.get(node, holdings_lib.NOTHING),
          )
          for node, row in schedule.rows.items()
      },
  )


def span_ms(schedule: instruction_lib.Schedule, costs: costs_lib.StageCosts) -> float:
  """Returns `play(...).span_ms`, without checks."""
  free_ms, _ = _walk(schedule.rows, costs)
  return max(free_ms.values(), default=0.0)


def _walk(
    rows: Mapping[base.NodeId, instruction_lib.Row],
    costs: costs_lib.StageCosts,
    checkers: Mapping[base.NodeId, checker.Checker] | None = None,
) -> tuple[dict[base.NodeId, float], dict[base.NodeId, list[Slot]]]:
  """Returns the end of each row, ms, and with `checkers` all slots by node."""
  left = {node: iter(row) for node, row in rows.items()}
  free_ms = dict.fromkeys(rows, 0.0)
  # Transfer a node waits in, by node.
  waiting: dict[base.NodeId, Instruction] = {}
  slots: dict[base.NodeId, list[Slot]] = {node: [] for node in rows}

  def run(node: base.NodeId, i: Instruction, start_ms: float) -> None:
    if checkers:
      checkers[node].run(i)
    end_ms = start_ms
    if not i.is_transfer:
      end_ms += costs.pass_ms(i)
    elif i.is_receive:
      end_ms += costs.transfer_ms[i.stage]
    free_ms[node] = end_ms
    if checkers:
      slots[node].append(Slot(node, i, start_ms, end_ms))

  moving = list(rows)
  while moving:
    node = moving.pop()
    for i in left[node]:
      if not i.is_transfer:
        run(node, i, free_ms[node])
        continue
      peer = i.peer
      if peer not in waiting or not _are_ends(node, i, waiting[peer]):
        waiting[node] = i
        break
      ends = [(node, i), (peer, waiting.pop(peer))]
      start_ms = max(free_ms[node], free_ms[peer])
      # The sender first: a missing array is reported where it is missing.
      for name, end in ends if i.is_send else reversed(ends):
        run(name, end, start_ms)
      moving.append(peer)
  if waiting:
    stuck = {node: waiting[node] for node in rows if node in waiting}
    raise _explain_waits(stuck, {n: [*row] for n, row in left.items()})
  return free_ms, slots


def _explain_waits(
    waiting: Mapping[base.NodeId, Instruction], left: Mapping[base.NodeId, list[Instruction]]
) -> ScheduleError:
  """Returns the error that names the nodes in a deadlock."""
  for node, i in waiting.items():
    assert i.peer is not None  # Only transfers wait.
    to_come = left.get(i.peer, [])
    if i.peer in waiting:
      to_come = [waiting[i.peer], *to_come]
    if not any(_are_ends(node, i, other) for other in to_come):
      other_end = dataclasses.replace(i, op=_OTHER_END[i.op], peer=node)
      return ScheduleError(
          f"Node {node} waits at {i} forever: node {i.peer} has no " f"{other_end} to come."
      )
  waits = ", ".join(f"node {node} at {i}" for node, i in waiting.items())
  return ScheduleError(f"Deadlock, nodes wait for each other: {waits}.")


def _are_ends(node: base.NodeId, i: Instruction, other: Instruction) -> bool:
  """Whether `other`, of node `i.peer`, is the other end of `i`, of `node`."""
  return (
      other.peer == node
      and other.stage == i.stage
      and other.microbatch == i.microbatch
      and other.op is _OTHER_END[i.op]
  )


def linearize(
    timelines: Sequence[Timeline],
) -> tuple[tuple[base.NodeId, instruction_lib.Instruction], ...]:
  """Returns the instructions of all pipelines as (node, instruction).

  It is the order for one thread that drives many nodes:

  node 0  0F0 0SA0>1 0F1 0RG0<1 0SA1>1 0B0     1. by planned start, receives by
  node 1  0RA0<0 1F0 1B0 0SG0>0 ...               their planned end
                                               2. no receive before its send
  0:0F0 0:0SA0>1 0:0F1 1:0RA0<0 1:1F0 1:1B0 1:0SG0>0 0:0RG0<1 0:0SA1>1 ...

  Rows keep their order, and a send precedes its receive. Instructions are
  sorted by planned start, receives by planned end: a thread that blocks in a
  receive has then dispatched all that should run meanwhile. Ties: passes,
  sends, receives; then the lowest node. A node is in one of `timelines` only
  (one per pipeline).
  """
  rows: dict[base.NodeId, Sequence[Slot]] = {}
  for timeline in timelines:
    if both := timeline.rows.keys() & rows.keys():
      raise ValueError(f"Nodes {sorted(both)} are in two timelines.")
    rows |= timeline.rows
  heads = dict.fromkeys(rows, 0)
  sent = set()  # Transfers sent but not received.
  waiting = {}  # Nodes blocked in a receive, by transfer.
  heap: list[tuple[float, int, base.NodeId]] = []

  def push(node: base.NodeId) -> None:
    if heads[node] == len(rows[node]):
      return
    slot = rows[node][heads[node]]
    urgency = slot.start_ms, int(slot.instruction.is_send)
    if slot.instruction.is_receive:
      key = slot.instruction.transfer(node)
      if key not in sent:
        waiting[key] = node
        return
      urgency = slot.end_ms, 2
    heapq.heappush(heap, (*urgency, node))

  for node in rows:
    push(node)
  order = []
  while heap:
    *_, node = heapq.heappop(heap)
    slot = rows[node][heads[node]]
    order.append((node, slot.instruction))
    heads[node] += 1
    if slot.instruction.is_send:
      key = slot.instruction.transfer(node)
      sent.add(key)
      if key in waiting:
        push(waiting.pop(key))
    elif slot.instruction.is_receive:
      sent.remove(slot.instruction.transfer(node))
    push(node)
  assert not waiting, waiting
  return tuple(order)
