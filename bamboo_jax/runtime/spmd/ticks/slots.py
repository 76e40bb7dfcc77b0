"""Allocates a buffer slot to every array of a table of ticks; see `tick_table`.

A slot is filled, read, and reused after the last read. Within a tick a node
runs its forward passes, then its backward pass, then stores arrivals; a slot
that is read may be filled later in the same tick. Residuals of redundant passes
are copied to the host beside the backward pass, so each has a slot of its own
until the tick ends.
"""

import collections
from collections.abc import Hashable, Iterable, Mapping, Sequence
import dataclasses
from typing import Any

from bamboo_jax.runtime.spmd.ticks import order as order_lib, tick_table as table_lib
from bamboo_jax.schedule import holdings as holdings_lib, instruction as instruction_lib

Op = instruction_lib.Op
Pass = table_lib.Pass
Key = table_lib.Key
KINDS = ("activations", "grads", "residuals")


def assign(
    passes: order_lib.Passes,
    redundant: Mapping[tuple[int, int], Sequence[int]],
    work: order_lib.Work,
    *,
    num_microbatches: int,
) -> table_lib.TickTable:
  """Returns the table of `passes` and of `redundant`, by tick and node."""
  nodes = [_Node(n, passes, redundant, work) for n in range(len(work.start))]
  ticks = []
  for t, tick in enumerate(passes):
    row = []
    for n, node in enumerate(nodes):
      forwards = [node.forward(key) for op, key in tick[n] if op is Op.FORWARD]
      forwards += map(node.redundant, redundant.get((t, n), ()))
      backward = Pass()
      for op, key in tick[n]:
        if op is Op.BACKWARD:
          backward = node.backward(key)
      node.release_redundant()
      row.append(table_lib.Tick(tuple(forwards), backward))
    for n, node in enumerate(nodes):
      before, behind = row[n - 1].forward, row[(n + 1) % len(nodes)].backward
      row[n] = dataclasses.replace(
          row[n],
          arriving_inputs=node.arrive("activations", before.key, n - 1, before),
          arriving_grads=node.arrive("grads", holdings_lib.input_of(behind.key), n + 1, behind),
      )
    ticks.append(tuple(row))
  return table_lib.TickTable(
      owners=work.owners,
      num_microbatches=num_microbatches,
      ticks=tuple(ticks),
      start=tuple(node.start for node in nodes),
      num_slots={kind: max(node.slots[kind].count for node in nodes) for kind in KINDS},
  )


class _Slots:
  """Places in a buffer, reused once they are free."""

  def __init__(self, start: Iterable[Key]) -> None:
    self.taken: dict[Any, int] = {key: i for i, key in enumerate(start)}
    self.count = max(1, len(self.taken))  # Read even if unused.

  def take(self, key: Hashable) -> int:
    """Allocates the first free slot to `key` and returns it."""
    used = set(self.taken.values())
    slot = next(k for k in range(len(used) + 1) if k not in used)
    self.taken[key] = slot
    self.count = max(self.count, slot + 1)
    return slot


class _Node:
  """The slots of a node, and the number of reads still to come."""

  def __init__(
      self,
      node: int,
      passes: order_lib.Passes,
      redundant: Mapping[tuple[int, int], Sequence[int]],
      work: order_lib.Work,
  ) -> None:
    held = work.start[node]
    self._node, self._work, self._held = node, work, held
    self._stages = table_lib.stages_of(work.owners, node)
    # Number of reads of an activation still to come.
    self._reads: collections.Counter[Key] = collections.Counter()
    for t, tick in enumerate(passes):
      for op, key in tick[node]:
        self._reads[holdings_lib.input_of(key)] += op is Op.FORWARD
      for m in redundant.get((t, node), ()):
        self._reads[holdings_lib.input_of((self._stages[1], m))] += 1
    is_owed = lambda key: (work.owners[key[0]] == node and key not in held.accumulated)
    wanted = {
        "activations": lambda key: self._reads[key] > 0,
        "grads": is_owed,
        "residuals": is_owed,
    }
    self.slots = {
        kind: _Slots(filter(want, sorted(getattr(held, kind)))) for kind, want in wanted.items()
    }
    taken = {kind: dict(slots.taken) for kind, slots in self.slots.items()}
    self.start = dataclasses.replace(
        held, activations=taken["activations"], grads=taken["grads"], residuals=taken["residuals"]
    )

  def forward(self, key: Key) -> Pass:
    is_repeated = self._work.has_residuals(self._node, key)
    inputs, residuals = self._read(key), self.slots["residuals"]
    residual = residuals.take((None, key[1]) if is_repeated else key)
    if is_repeated:  # Run again only for its output.
      del residuals.taken[None, key[1]]
    output = -1
    if self._reads[key] and key not in self.slots["activations"].taken:
      output = self.slots["activations"].take(key)
    return self._pass(key, inputs=inputs, residual=residual, output=output)

  def redundant(self, microbatch: int) -> Pass:
    key, residuals = (self._stages[1], microbatch), self.slots["residuals"]
    return self._pass(
        key, inputs=self._read(key), residual=residuals.take((None, microbatch)), host=microbatch
    )

  def release_redundant(self) -> None:
    """Frees the slots of the redundant passes of a tick, at its end."""
    taken = self.slots["residuals"].taken
    for key in [key for key in taken if key[0] is None]:
      del taken[key]

  def backward(self, key: Key) -> Pass:
    stage, residuals = key[0], self.slots["residuals"]
    host = self._held.host.get(key, -1)
    slot = residuals.taken.get(key, -1)
    if host >= 0:
      slot = residuals.take(key)
    residuals.taken.pop(key, None)
    inputs = self.slots["grads"].taken.pop(key, -1)
    output = -1
    if stage and self._work.owners[stage - 1] == self._node:
      output = self._keep_grad(holdings_lib.input_of(key))
    return self._pass(key, inputs=inputs, residual=slot, output=output, host=host)

  def arrive(self, kind: str, key: Key, source: int, sent: Pass) -> int:
    """Allocates a slot for an array from a neighbour; -1 if not needed."""
    num_nodes = len(self._work.start)
    if not sent or source % num_nodes == self._node or key[0] < 0:
      return -1
    if kind == "grads":
      if self._work.owners[key[0]] != self._node:
        return -1
      return self._keep_grad(key)
    if not self._reads[key] or key in self.slots[kind].taken:
      return -1
    return self.slots[kind].take(key)

  def _keep_grad(self, key: Key) -> int:
    done = key in self._held.accumulated or key in self.slots["grads"].taken
    return -1 if done else self.slots["grads"].take(key)

  def _read(self, key: Key) -> int:
    """Returns the slot of a forward pass's input; frees it on the last read."""
    before = holdings_lib.input_of(key)
    if before[0] < 0:
      return -1
    self._reads[before] -= 1
    taken = self.slots["activations"].taken
    slot = taken[before]
    if not self._reads[before]:
      del taken[before]
    return slot

  def _pass(self, key: Key, **fields: int) -> Pass:
    hold = self._stages.index(key[0])
    return Pass(microbatch=key[1], stage=key[0], hold=hold, **fields)
