"""One order of all instructions, for one thread that drives many nodes.

node 0  0F0 0SA0>1 0F1 0RG0<1 0SA1>1 0B0     1. by planned start, receives by
node 1  0RA0<0 1F0 1B0 0SG0>0 ...               their planned end
                                             2. no receive before its send
0:0F0 0:0SA0>1 0:0F1 1:0RA0<0 1:1F0 1:1B0 1:0SG0>0 0:0RG0<1 0:0SA1>1 ...
"""

from collections.abc import Sequence
import heapq

from bamboo_jax import base
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import timeline as timeline_lib


def linearize(
    timelines: Sequence[timeline_lib.Timeline],
) -> tuple[tuple[base.NodeId, instruction_lib.Instruction], ...]:
  """Returns the instructions of all pipelines as (node, instruction).

  Rows keep their order, and a send precedes its receive. Instructions are
  sorted by planned start, receives by planned end: a thread that blocks in a
  receive has then dispatched all that should run meanwhile. Ties: passes,
  sends, receives; then the lowest node. A node is in one of `timelines` only
  (one per pipeline).
  """
  rows: dict[base.NodeId, Sequence[timeline_lib.Slot]] = {}
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
    if slot.instruction.is_receive:
      key = slot.instruction.transfer(node)
      if key not in sent:
        waiting[key] = node
        return
    heapq.heappush(heap, (*_urgency(slot), node))

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


def _urgency(slot: timeline_lib.Slot) -> tuple[float, int]:
  if slot.instruction.is_receive:
    return slot.end_ms, 2
  return slot.start_ms, int(slot.instruction.is_send)
