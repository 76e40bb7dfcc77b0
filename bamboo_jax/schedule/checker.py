"""Rejects rows that would give wrong gradients or hang.

Follows each node through its row and finds work that is lost or done twice,
missing inputs, microbatches summed out of order, and deadlocks. It shares no
code with `simulate`, which makes the rows.
"""

import collections
from collections.abc import Collection, Mapping, Sequence
import itertools

from bamboo_jax import base
from bamboo_jax.schedule import (
    channel as channel_lib,
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
  line_of = {m: line for line in lines for m in line.microbatches}
  nodes = {*rows, *(owner for line in lines for owner in line.owners)}
  held = {n: holdings_lib.after((), (holdings or {}).get(n, holdings_lib.NOTHING)) for n in nodes}
  # Outputs that need not be sent to a node. Those of its redundant forward passes do
  # not count: with two stages it is also the one that receives them.
  delivered = {node: {*one.activations} for node, one in held.items()}
  # Microbatches yet to be summed, by node, line and stage, the last one first.
  to_sum = {
      (node, id(line), stage): [
          m for m in reversed(line.microbatches) if (stage, m) not in held[node].accumulated
      ]
      for line in lines
      for stage, node in base.by_stage(line.owners)
  }
  left = {node: collections.deque(row) for node, row in rows.items()}
  sent: set[instruction_lib.Transfer] = set()
  # By channel, in order.
  in_flight = collections.defaultdict[channel_lib.Channel, list[instruction_lib.Transfer]](list)
  moving = True
  while moving:
    moving = False
    for node, row in left.items():
      while row and (not row[0].is_receive or row[0].transfer(node) in sent):
        i, moving = row.popleft(), True
        line = line_of.get(i.microbatch)
        own = to_sum.get((node, id(line), i.stage))  # None: not summed here.
        problem = _find_problem(i, line, own, held[node], delivered[node])
        if i.is_transfer and not problem:
          t = i.transfer(node)
          link = in_flight[t.channel]
          if t in sent if i.is_send else t not in link:
            problem = "it is done twice"
          elif i.is_send:
            sent.add(t)
            link.append(t)
          elif (first := link.pop(0)) != t:
            problem = f"{first.receive} was sent before"
        if problem:
          raise ScheduleError(f"Node {node} cannot run {i}: {problem}.")
        if own and i.op is Op.BACKWARD:
          own.pop()
        elif i.op is Op.RECV_ACTIVATION:
          delivered[node].add(i.item)
        held[node].add(i)
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
  for (node, _, stage), microbatches in to_sum.items():
    if microbatches:
      missing = Instruction(stage, Op.BACKWARD, microbatches[-1])
      raise ScheduleError(f"Node {node} does not run {missing}; its row has ended.")


def _find_problem(
    i: Instruction,
    line: lines_lib.Line | None,
    to_sum: Sequence[int] | None,
    held: holdings_lib.Holdings,
    delivered: Collection[holdings_lib.Item],
) -> str | None:
  """Returns why a node that holds this cannot run `i`; None if it can."""
  (s, m), item = i.item, i.item
  # The output of the last stage goes nowhere.
  if line is None or not 0 <= s < len(line.owners) - i.is_transfer:
    return "there is no such stage or microbatch"
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
    case Op.RECV_ACTIVATION if item in delivered:
      return "the output is already there"
    case Op.RECV_GRAD if item in held.gradients:
      return "the gradient is already there"
  return None
