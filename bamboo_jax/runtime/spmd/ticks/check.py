"""Rejects a table of ticks that does not compute its rows.

Work is checked by playing the table as rows, arrays by following each slot
through the ticks. The same simulation gives a node's data between two ticks.
"""

from collections.abc import Mapping
import dataclasses

from bamboo_jax import base
from bamboo_jax.runtime.spmd.ticks import tick_table as table_lib
from bamboo_jax.schedule import (
    checker,
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
)

Op = instruction_lib.Op
ScheduleError = checker.ScheduleError
Key = table_lib.Key


def check(table: table_lib.TickTable) -> None:
  """Raises `ScheduleError` unless a program may run `table`."""
  owners = tuple(map(base.NodeId, table.owners))
  checker.check(
      as_rows(table),
      [lines_lib.Line(owners, range(table.num_microbatches))],
      {n: held.holdings() for n, held in base.by_node(table.start)},
  )
  find_contents(table, len(table.ticks))


def as_rows(table: table_lib.TickTable) -> dict[base.NodeId, list[instruction_lib.Instruction]]:
  """Returns the rows of `table`, by node.

  Microbatches are counted from 0. Results are sent at the end of their tick, to
  nodes that have a slot for them.
  """
  nodes = base.nodes(table.num_nodes)
  rows: dict[base.NodeId, list[instruction_lib.Instruction]]
  rows = {n: [] for n in nodes}
  for tick in table.ticks:
    for n in nodes:
      rows[n] += passes(tick[n])
    sent: list[instruction_lib.Transfer] = []
    for n in nodes:
      before, behind = nodes[n - 1], nodes[(n + 1) % len(nodes)]
      if tick[n].arriving_inputs >= 0:
        key = tick[before].forward.key
        sent.append(instruction_lib.Transfer("A", *key, before, n))
      if tick[n].arriving_grads >= 0:
        key = holdings_lib.input_of(tick[behind].backward.key)
        sent.append(instruction_lib.Transfer("G", *key, behind, n))
    for transfer in sent:
      rows[transfer.source].append(transfer.send)
      rows[transfer.destination].append(transfer.receive)
  return rows


def passes(tick: table_lib.Tick) -> list[instruction_lib.Instruction]:
  """Returns the passes of a node in a tick, in order."""
  ran = [(p, Op.FORWARD if p.host < 0 else Op.REDUNDANT_FORWARD) for p in tick.forwards]
  if tick.backward:
    ran.append((tick.backward, Op.BACKWARD))
  return [instruction_lib.Instruction(p.stage, op, p.microbatch) for p, op in ran]


@dataclasses.dataclass(frozen=True)
class NodeContents:
  """The data of a node between two ticks, by stage and microbatch.

  Attributes:
    held: Its slots, including slots that are not read again, and the arrays
      held before the table.
    offloaded: Tick that moved residuals to host memory.
    outputs: Tick that computed an output of one of its stages.
    input_grads: Tick that computed the gradient of the output of the stage
      before.
  """

  held: table_lib.Held
  offloaded: Mapping[Key, int]
  outputs: Mapping[Key, int]
  input_grads: Mapping[Key, int]


def find_contents(table: table_lib.TickTable, num_ticks: int) -> list[NodeContents]:
  """Returns the data of each node after the first `num_ticks` ticks.

  Raises `ScheduleError` if a pass reads a slot that holds another array.
  """
  nodes = [_Node(table, n) for n in range(table.num_nodes)]
  for t, tick in enumerate(table.ticks[:num_ticks]):
    for node, own in zip(nodes, tick, strict=True):
      node.run(t, own)
    for n, (node, own) in enumerate(zip(nodes, tick, strict=True)):
      where = f"the end of tick {t} of node {n}"
      if own.arriving_inputs >= 0:
        key = tick[n - 1].forward.key
        node.fill("activations", own.arriving_inputs, key, where)
      if own.arriving_grads >= 0:
        key = holdings_lib.input_of(tick[(n + 1) % len(tick)].backward.key)
        node.fill("grads", own.arriving_grads, key, where)
  return [node.contents() for node in nodes]


class _Node:

  def __init__(self, table: table_lib.TickTable, node: int) -> None:
    self._table, self._node, self._start = table, node, table.start[node]
    self._slots = {
        kind: {slot: key for key, slot in getattr(self._start, kind).items()}
        for kind in table.num_slots
    }
    self._accumulated = set(self._start.accumulated)
    self._offloaded: dict[Key, int] = {}
    self._outputs: dict[Key, int] = {}
    self._input_grads: dict[Key, int] = {}

  def run(self, t: int, tick: table_lib.Tick) -> None:
    where, last = f"tick {t} of node {self._node}", self._table.num_stages - 1
    for p in tick.forwards:
      key = p.key
      if p.stage:
        self._read("activations", p.inputs, holdings_lib.input_of(key), where)
      # Residuals of a repeated pass are not read.
      held = self._start
      is_repeated = key in held.residuals or key in held.host or key in held.accumulated
      self.fill("residuals", p.residual, None if is_repeated else key, where)
      if p.host >= 0:
        self._offloaded[key] = t
        del self._slots["residuals"][p.residual]
      else:
        self._outputs[key] = t
      if p.output >= 0:
        self.fill("activations", p.output, key, where)
    if p := tick.backward:
      key = p.key
      if p.host >= 0:
        if self._start.host.get(key) != p.host:
          raise ScheduleError(f"Slot {p.host} in host memory does not hold {key} in {where}.")
        self.fill("residuals", p.residual, key, where)
      self._read("residuals", p.residual, key, where)
      del self._slots["residuals"][p.residual]
      if p.stage < last:
        self._read("grads", p.inputs, key, where)
      self._accumulated.add(key)
      if p.stage:
        key = holdings_lib.input_of(key)
        self._input_grads[key] = t
        if p.output >= 0:
          self.fill("grads", p.output, key, where)

  def fill(self, kind: str, slot: int, key: Key | None, where: str) -> None:
    if not 0 <= slot < self._table.num_slots[kind]:
      raise ScheduleError(
          f"There is no slot {slot} of {kind} for {key} in {where}, only "
          f"{self._table.num_slots[kind]}."
      )
    self._slots[kind][slot] = key

  def contents(self) -> NodeContents:
    slots = {
        kind: {key: slot for slot, key in slots.items() if key}
        for kind, slots in self._slots.items()
    }
    held = dataclasses.replace(self._start, **slots, accumulated=frozenset(self._accumulated))
    return NodeContents(held, self._offloaded, self._outputs, self._input_grads)

  def _read(self, kind: str, slot: int, key: Key, where: str) -> None:
    held = self._slots[kind].get(slot)
    if held != key:
      holds = "nothing" if held is None else f"{held}"
      raise ScheduleError(f"Slot {slot} of {kind} holds {holds} in {where}, which needs {key}.")
