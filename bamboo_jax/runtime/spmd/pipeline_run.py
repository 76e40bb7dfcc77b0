"""The progress of one pipeline in a step, segment by segment.

A segment donates nothing if a death can be survived, so that a death costs only
the segment in which it happened: each remaining node dumps what it has into its
store of arrays, which rows use too, and another run loads the rest of the step
from the stores.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.spmd import (
    buffers as buffers_lib,
    program as program_lib,
    ticks as ticks_lib,
    weights as weights_lib,
)
from bamboo_jax.runtime.stage import array_store

Key = ticks_lib.Key
Stores = Mapping[base.NodeId, array_store.StepArrays]


class PipelineRun:
  """The progress of a pipeline in a step: segments, and their results.

  Attributes:
    owners: The node of each stage.
    nodes: The same nodes once each, along the ring.
    num_segments: Number of finished segments.
    is_rest: Whether it continues a step.
  """

  def __init__(
      self,
      program: program_lib.SegmentProgram,
      table: ticks_lib.TickTable,
      inputs: Sequence[base.PyTree],
      *,
      owners: Sequence[base.NodeId],
      share: base.ShareId,
      stores: Stores | None = None,
  ) -> None:
    """Begins a step, or with `stores` continues it from what nodes have dumped.

    `inputs` are the first four arguments of `SegmentProgram.segment`.
    """
    self.program, self.table, self._share = program, table, share
    self.owners, self.nodes = tuple(owners), tuple(dict.fromkeys(owners))
    self.is_rest, self.num_segments = stores is not None, 0
    self._inputs = inputs
    self._offloaded: list[buffers_lib.Kept] = []
    self._sent: list[tuple[base.PyTree, base.PyTree]] = []
    if stores is None:
      self._carry = program.start()
      self._fetched = program.zeros(program.fetched, kind="pinned_host")
    else:
      self._carry, self._fetched = self._load(stores)
    self._pending: tuple[Any, ...] | None = None

  @property
  def is_done(self) -> bool:
    """Whether all ticks are finished."""
    return not self.segment

  @property
  def segment(self) -> Sequence[tuple[ticks_lib.Tick, ...]]:
    """The ticks of the next segment."""
    return self.table.ticks[self._num_ticks :][: self.program.sizes.num_ticks]

  @property
  def _num_ticks(self) -> int:
    return self.num_segments * self.program.sizes.num_ticks

  def start(self) -> None:
    """Starts the next segment."""
    self._pending = self._call(self._num_ticks, self._carry)

  def run_idle(self) -> None:
    """Runs a segment without passes, which connects all processes; blocks."""
    jax.block_until_ready(self._call(len(self.table.ticks), self.program.start()))

  def finish(self, *, is_lost: bool = False) -> None:
    """Blocks until the segment is finished; raises its error.

    With `is_lost`, a node of the pipeline is dead, and the results are
    discarded.
    """
    pending, self._pending = self._pending, None
    carry, offloaded, sent = jax.block_until_ready(pending)
    if is_lost:
      return
    self.num_segments += 1
    self._carry = carry
    self._offloaded.append(offloaded)
    self._sent.append(sent)

  def release(self) -> None:
    """Lets later segments overwrite what this run has left on the host."""
    self.program.free += zip(self._offloaded, self._sent, strict=True)
    self._offloaded, self._sent = [], []

  def sums(self, node: base.NodeId) -> buffers_lib.MicrobatchSums:
    """Returns the sums of a local node, arrays [1, ...]."""
    return self.program.part(self.nodes.index(node), self._carry.sums)

  def dump(self, node: base.NodeId, store: array_store.StepArrays) -> None:
    """Puts all arrays of a local node but its sums into its store, in NumPy."""
    n, size = self.nodes.index(node), self.program.sizes.num_ticks
    found = self.table.find_contents(n, self._num_ticks, self.program.sizes.num_slots)
    carry, arrays = self._carry, {"activations": store.activations, "grads": store.grads}
    for (kind, key), t in found.sent.items():
      sent = self._sent[t // size][kind == "grads"]
      arrays[kind][self._number(key)] = self._read(sent, n, t % size)
    for (kind, key), slot in found.slots.items():
      if kind == "residuals":
        store.saved[self._number(key)] = self._read(carry.kept, n, slot)
      else:
        arrays[kind][self._number(key)] = self._read(getattr(carry, kind), n, slot)
    for key, t in found.offloaded.items():
      first = t - t % size
      slot = self.table.offloads(n, first, first + size)[key]
      store.saved[self._number(key)] = self._read(self._offloaded[t // size], n, slot)
    store.accumulated |= {*map(self._number, found.accumulated)}
    for key in store.saved.keys() & store.accumulated:
      del store.saved[key]

  def _call(self, first: int, carry: buffers_lib.Carry) -> tuple[Any, ...]:
    """Starts the segment of a tick and those after it."""
    sizes = self.program.sizes
    rows = self.table.as_array(first, first + sizes.num_ticks, sizes.num_slots, sizes.num_owned)
    table = self.program.put({n: rows[n : n + 1] for n in self.program.local})
    host = self.program.take_host()
    return self.program.segment(*self._inputs, table, carry, self._fetched, host)

  def _load(self, stores: Stores) -> tuple[buffers_lib.Carry, base.PyTree]:
    """Puts the arrays that the table needs into their slots."""
    program, table, zeros = self.program, self.table, program_lib.host_zeros
    carries = {n: zeros(program.carry) for n in self.program.local}
    fetched = {n: zeros(program.fetched) for n in self.program.local}
    for n, carry in carries.items():
      start, own = table.start[n], stores[self.nodes[n]]
      for kind, keys in (("activations", start.activations), ("grads", start.gradients)):
        for key in keys:
          number = self._number(key)
          holders = (getattr(store, kind) for store in (own, *stores.values()))
          value = next(arrays[number] for arrays in holders if number in arrays)
          slot = table.find_slot(n, kind, key, program.sizes.num_slots)
          _store(getattr(carry, kind), value, slot)
      for key, slot in table.fetches(n).items():
        _store(fetched[n], own.saved[self._number(key)], slot)
      for hold, stage in enumerate(table.stages_of(n)[: program.sizes.num_owned]):
        total = own.accumulators.get((stage, self._share))
        if total is not None:
          weights_lib.load_sums(program, stage, hold, carry.sums, total)
    return program.put(carries), program.put(fetched, kind="pinned_host")

  def _number(self, key: Key) -> Key:
    """Returns a key with the number of the microbatch in the global batch."""
    return key[0], int(self._inputs[2][key[1]])

  def _read(self, buffer: base.PyTree, n: int, slot: int) -> base.PyTree:
    """Returns the value of a node in a slot."""
    return jax.tree.map(lambda a: np.asarray(a)[0, slot], self.program.part(n, buffer))


def _store(buffer: base.PyTree, value: base.PyTree, slot: int) -> None:
  """Copies a value into a slot of NumPy arrays."""
  jax.tree.map(lambda a, v: a.__setitem__((0, slot), v), buffer, value)
