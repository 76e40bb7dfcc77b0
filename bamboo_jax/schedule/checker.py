"""Rejects rows that would give wrong gradients or hang.

Follows each node through its row and finds work that is lost or done twice,
missing inputs, microbatches summed out of order, and deadlocks. It shares no
code with `simulate`, which makes the rows.
"""

import collections
from collections.abc import Mapping, Sequence
import itertools

from bamboo_jax import base
from bamboo_jax.schedule import (
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
)

Op = instruction_lib.Op
Instruction = instruction_lib.Instruction


class ScheduleError(ValueError):
  """A schedule that must not be run; the message names node and instruction."""


def check(
    rows: Mapping[base.NodeId, Sequence[Instruction]],
    lines: Sequence[lines_lib.Line],
    holdings: lines_lib.Holdings | None = None,
) -> None:
  """Raises `ScheduleError` unless the rows finish the step of all lines.

  Work is lost or done twice, an input is missing, sums are out of order, a
  transfer has one end only, a value overtakes another on its link, or nodes wait
  for each other.
  """
  holdings = holdings or {}
  nodes = {
      node: _Node(node, lines, holdings.get(node, holdings_lib.NOTHING))
      for node in sorted({*rows, *(owner for line in lines for owner in line.owners)})
  }
  left = {node: collections.deque(row) for node, row in rows.items()}
  sent: set[instruction_lib.Transfer] = set()
  # By link, in order.
  in_flight = collections.defaultdict[object, list[instruction_lib.Transfer]](list)
  moving = True
  while moving:
    moving = False
    for node, row in left.items():
      while row and (not row[0].is_receive or row[0].transfer(node) in sent):
        i, moving = row.popleft(), True
        nodes[node].run(i)
        if not i.is_transfer:
          continue
        t = i.transfer(node)
        link = in_flight[t.kind, t.stage, t.source, t.destination]
        if t in sent if i.is_send else t not in link:
          raise ScheduleError(f"Node {node} cannot run {i}: it is done twice.")
        if i.is_send:
          sent.add(t)
          link.append(t)
        elif (first := link.pop(0)) != t:
          raise ScheduleError(f"Node {node} cannot run {i}: {first.receive} was sent before.")
  waits = {node: row[0].transfer(node) for node, row in left.items() if row}
  for node, t in waits.items():
    if t.send not in left.get(t.source, ()):
      raise ScheduleError(f"Node {node} has {t.receive}, but node {t.source} has no {t.send}.")
  if waits:
    where = ", ".join(f"node {node} at {t.receive}" for node, t in waits.items())
    raise ScheduleError(f"Deadlock, nodes wait for each other: {where}.")
  for t in itertools.chain.from_iterable(in_flight.values()):
    raise ScheduleError(
        f"Node {t.source} has {t.send}, but node {t.destination} has no {t.receive}."
    )
  for one in nodes.values():
    one.finish()


class _Node:
  """Follows the data that one node holds through its row."""

  def __init__(
      self, node: base.NodeId, lines: Sequence[lines_lib.Line], holdings: holdings_lib.Holdings
  ) -> None:
    self._node = node
    self._line_of = {m: line for line in lines for m in line.microbatches}
    self._held = holdings_lib.HoldingsLedger(holdings)
    # Outputs that need not be sent here. A redundant forward pass does not
    # count: with two stages its node is also the one that receives its output.
    self._delivered = set(holdings.activations)
    # Microbatches that this node has yet to sum, by line and stage, last one
    # first.
    self._to_sum = {
        (id(line), stage): [
            m for m in reversed(line.microbatches) if (stage, m) not in holdings.accumulated
        ]
        for line in lines
        for stage, owner in base.by_stage(line.owners)
        if owner == node
    }

  def run(self, i: Instruction) -> None:
    """Records that the node runs `i`, or raises `ScheduleError`."""
    if problem := self._problem(i):
      raise ScheduleError(f"Node {self._node} cannot run {i}: {problem}.")
    if i.op is Op.BACKWARD:
      self._to_sum[id(self._line_of[i.microbatch]), i.stage].pop()
    elif i.op is Op.RECV_ACTIVATION:
      self._delivered.add(i.item)
    self._held.add(i)

  def finish(self) -> None:
    """Raises `ScheduleError` unless the node has done all owed work."""
    for (_, stage), microbatches in self._to_sum.items():
      if microbatches:
        missing = Instruction(stage, Op.BACKWARD, microbatches[-1])
        raise ScheduleError(f"Node {self._node} does not run {missing}; its row has ended.")

  def _problem(self, i: Instruction) -> str | None:
    (s, m), item, held = i.item, i.item, self._held
    line = self._line_of.get(m)
    # The output of the last stage goes nowhere.
    if line is None or not 0 <= s < len(line.owners) - i.is_transfer:
      return "there is no such stage or microbatch"
    to_sum = self._to_sum.get((id(line), s))  # None: not summed here.
    if i.op in (Op.FORWARD, Op.BACKWARD) and to_sum is None:
      return f"stage {s} belongs to node {line.owners[s]}"
    match i.op:
      case Op.FORWARD if item in held.activations and (
          item in held.residuals or item in held.accumulated
      ):
        return "it is done twice"
      case Op.REDUNDANT_FORWARD if to_sum is not None:
        return "the node owns the stage"
      case Op.REDUNDANT_FORWARD if item in held.residuals:
        return "it is done twice"
      case Op.FORWARD | Op.REDUNDANT_FORWARD if s > 0 and (s - 1, m) not in held.activations:
        return f"the output of stage {s - 1} is not there"
      case Op.BACKWARD if item in held.accumulated:
        return "it is done twice"
      case Op.BACKWARD if to_sum and to_sum[-1] != m:
        return f"microbatch {to_sum[-1]} must be summed before"
      case Op.BACKWARD if item not in held.residuals:
        return "the residuals are not there"
      case Op.BACKWARD if s + 1 < len(line.owners) and item not in held.gradients:
        return "the gradient is not there"
      case Op.SEND_ACTIVATION if item not in held.activations:
        return "the output is not there"
      case Op.SEND_GRAD if item not in held.gradients:
        return "the gradient is not there"
      case Op.RECV_ACTIVATION if item in self._delivered:
        return "the output is already there"
      case Op.RECV_GRAD if item in held.gradients:
        return "the gradient is already there"
    return None
