"""The rule by which a node runs redundant forward passes while it waits.

A row that waits for a value, rather than its device, runs a redundant forward
pass whose input it has, early microbatches first, since their residuals protect
the step for longer. The pass must end by the latest time at which the value may
come without a longer step, or be late by no more than the mode allows:

  planned   F0 F1 F2 ............<0 B0 F3    the gradient of microbatch 0 comes,
  latest    F0 F1 F2 ...............<0 B0 F3   and may come, at <0
  row       F0 F1 F2 RF0 RF1 RF2 <0 B0 F3    RF3 would end too late

Latest times follow from the plan without redundant passes, so a row that is
behind the plan fills less. In a cluster the rule decides as waits occur; in one
process and in predictions it is played ahead, see `replay`. The values
of a step do not depend on it.
"""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    timeline as timeline_lib,
)

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op
Transfer = instruction_lib.Transfer

# Waits are differences of sums of durations, in milliseconds.
_ROUNDING_MS = 1e-6


@dataclasses.dataclass(frozen=True)
class WaitRule:
  """The rule of one node in a step.

  Attributes:
    passes: Its redundant forward passes, those that protect most first.
    pass_ms: Returns the planned time of a pass, in ms.
    latest_ms: Latest planned end of its instructions, in ms, that does not lengthen
      the step.
    span_ms: Planned time of the step.
    late: By how much a pass may end too late, as a fraction of its time; if
      negative, so much must be left of a wait.
    late_ms: By how much any pass may end too late besides.
  """

  passes: Sequence[Instruction]
  pass_ms: Callable[[Instruction], float]
  latest_ms: Mapping[Instruction, float]
  span_ms: float
  late: float = 0.0
  late_ms: float = 0.0

  def find_next(
      self, done: Collection[Instruction], activations: Collection[holdings_lib.Item]
  ) -> Instruction | None:
    """Returns the next pass that is not `done` and whose input is present.

    `activations` are the present inputs, by stage and microbatch. None without
    such a pass.
    """
    for i in self.passes:
      has_input = not i.stage or (i.stage - 1, i.microbatch) in activations
      if has_input and i not in done:
        return i
    return None

  def fits(self, i: Instruction, receive: Instruction | None, *, now_ms: float) -> bool:
    """Returns whether to run a pass in the wait for a receive.

    Without a receive, at the end of the row, it must end before the step.
    `now_ms` is the time since the start of the step, on the clock of the plan.
    """
    pass_ms = self.pass_ms(i)
    if receive is None:
      latest_ms = self.span_ms + min(0.0, self.late) * pass_ms
    else:
      latest_ms = self.latest_ms[receive] + self.late * pass_ms + self.late_ms
    return now_ms + pass_ms <= latest_ms + _ROUNDING_MS


def find_latest_ms(
    timeline: timeline_lib.Timeline, costs: costs_lib.StageCosts
) -> dict[base.NodeId, dict[Instruction, float]]:
  """Returns when the instructions of each node must end at the latest to keep the span."""
  latest_ms = {node: dict[Instruction, float]() for node in timeline.nodes}
  # Latest start of the next instruction.
  start_ms = dict.fromkeys(timeline.nodes, timeline.span_ms)
  for slot in reversed(timeline.slots):
    node, i = slot.node, slot.instruction
    end_ms = start_ms[node]
    if i.is_send:
      transfer = i.transfer(node)
      arrival_ms = latest_ms[transfer.destination][transfer.receive]
      end_ms = min(end_ms, arrival_ms - costs.time_ms(transfer))
    latest_ms[node][i] = end_ms
    start_ms[node] = end_ms - (slot.end_ms - slot.start_ms)
  return latest_ms


def replay(
    rows: Mapping[base.NodeId, Sequence[Instruction]],
    ms: Callable[[Instruction | Transfer], float],
    rules: Mapping[base.NodeId, WaitRule] | None = None,
) -> timeline_lib.Timeline:
  """Returns the times of rows, whose waits are filled by `rules` if given.

  Args:
    ms: Returns the time of a pass, or from a send to its receive.
  """
  left = {node: collections.deque(row) for node, row in rows.items()}
  held = {node: holdings_lib.Holdings() for node in rows}
  done = set[Instruction]()  # Redundant passes; each is of one node only.
  free_ms, slots = dict.fromkeys(rows, 0.0), list[timeline_lib.Slot]()
  sent_ms: dict[Transfer, float] = {}
  waiting: dict[Transfer, base.NodeId] = {}

  def run(node: base.NodeId, i: Instruction, pass_ms: float) -> None:
    start_ms, free_ms[node] = free_ms[node], free_ms[node] + pass_ms
    slots.append(timeline_lib.Slot(node, i, start_ms, free_ms[node]))
    held[node].add(i)

  def fill(node: base.NodeId, receive: Instruction | None, until_ms: float) -> None:
    rule = rules.get(node) if rules else None
    while rule and free_ms[node] < until_ms:
      i = rule.find_next(done, held[node].activations)
      if i is None or not rule.fits(i, receive, now_ms=free_ms[node]):
        return
      done.add(i)
      run(node, i, ms(i))

  moving = [*rows]
  while moving:
    node = moving.pop()
    row = left[node]
    while row:
      i = row[0]
      if i.is_receive:
        transfer = i.transfer(node)
        if transfer not in sent_ms:
          waiting[transfer] = node
          break
        at_ms = sent_ms[transfer] + ms(transfer)
        fill(node, i, at_ms)
        free_ms[node] = max(free_ms[node], at_ms)
      row.popleft()
      run(node, i, 0.0 if i.is_transfer else ms(i))
      if i.is_send:
        transfer = i.transfer(node)
        sent_ms[transfer] = free_ms[node]
        if transfer in waiting:
          moving.append(waiting.pop(transfer))
  assert not waiting, waiting
  span_ms = max(free_ms.values(), default=0.0)
  for node in rows:
    fill(node, None, span_ms)
  return timeline_lib.Timeline.of(slots, free_ms)
