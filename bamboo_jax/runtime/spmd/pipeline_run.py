"""The progress of one pipeline in a step, segment by segment.

A segment donates nothing if a death can be survived, so that a death costs only
the segment in which it happened: each remaining node dumps what it has into its
store of arrays, which rows use too, and another run loads the rest of the step
from the stores.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple, Protocol

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


class Begin(NamedTuple):
  """What a node has when a program continues a step, NumPy arrays [1, ...].

  Attributes:
    carry: See `buffers.Carry`.
    fetched: Residuals in host memory.
  """

  carry: buffers_lib.Carry
  fetched: buffers_lib.Kept | None


class Left(NamedTuple):
  """What finished segments have left of a node, arrays [1, ...].

  Attributes:
    carry: After the last one.
    host: Residuals of redundant passes and sent values, by segment.
  """

  carry: buffers_lib.Carry
  host: Sequence[tuple[buffers_lib.Kept | None, Any]]


class Segments(Protocol):
  """The segments of a step, on local devices.

  Attributes:
    num_segments: Number of finished segments.
  """

  @property
  def num_segments(self) -> int:
    ...

  def start(self) -> None:
    """Starts the next segment."""

  def finish(self, *, is_lost: bool = False) -> None:
    """Blocks until the segment is finished; raises its error.

    With `is_lost`, a node of the pipeline is dead, and the results are
    discarded.
    """

  def sums(self, n: int) -> buffers_lib.MicrobatchSums | None:
    """Returns the sums of the local node at a place, arrays [1, ...]; None if unknown."""

  def read(self, n: int) -> Left | None:
    """Returns the results of finished segments on node `n` of the ring, if it is local; or None."""

  def release(self) -> None:
    """Lets later segments overwrite what these have left on the host."""


class LocalSegments:
  """Segments of a program that this process runs."""

  def __init__(
      self,
      program: program_lib.SegmentProgram,
      inputs: Sequence[base.PyTree],
      rows: Mapping[int, np.ndarray],
      begin: Mapping[int, Begin] | None = None,
  ) -> None:
    """All mappings are by place in the ring, of local nodes.

    Args:
      inputs: The first four arguments of `SegmentProgram.segment`.
      rows: See `find_rows`.
      begin: None at the start of a step.
    """
    self._program, self._inputs, self._rows = program, inputs, rows
    if begin is None:
      carry, self._fetched = program.start(), program.zeros(program.fetched, kind="pinned_host")
    else:
      carry = program.put({n: one.carry for n, one in begin.items()})
      fetched = {n: one.fetched for n, one in begin.items()}
      self._fetched = program.put(fetched, kind="pinned_host")
    self._left = Left(carry, ())  # Replaced as a whole: another thread may read it.
    self._pending: Any = None

  @property
  def num_segments(self) -> int:
    return len(self._left.host)

  def start(self) -> None:
    rows = {n: rows[self.num_segments] for n, rows in self._rows.items()}
    self._pending = self._call(rows, self._left.carry)

  def run_idle(self) -> None:
    """Runs a segment without passes, which connects all processes; blocks."""
    fields = (self._program.sizes.num_ticks, ticks_lib.NUM_FIELDS)
    idle = dict.fromkeys(self._rows, np.full(fields, -1, np.int32))
    jax.block_until_ready(self._call(idle, self._program.start()))

  def finish(self, *, is_lost: bool = False) -> None:
    pending, self._pending = self._pending, None
    carry, *host = jax.block_until_ready(pending)
    if not is_lost:
      self._left = Left(carry, (*self._left.host, tuple(host)))

  def release(self) -> None:
    self._program.free += self._left.host
    self._left = self._left._replace(host=())

  def sums(self, n: int) -> buffers_lib.MicrobatchSums:
    return self._program.part(n, self._left.carry.sums)

  def read(self, n: int) -> Left:
    left: Left = self._program.part(n, self._left)
    return left

  def _call(self, rows: Mapping[int, np.ndarray], carry: buffers_lib.Carry) -> tuple[Any, ...]:
    """Starts a segment."""
    program, table = self._program, {n: row[None] for n, row in rows.items()}
    return program.segment(
        *self._inputs, program.put(table), carry, self._fetched, program.take_host()
    )


@dataclasses.dataclass
class PipelineRun:
  """The progress of a pipeline in a step.

  Attributes:
    program: Its shapes.
    numbers: Microbatches of its share, in the global batch.
  """

  program: program_lib.SegmentProgram
  table: ticks_lib.TickTable
  segments: Segments
  owners: tuple[base.NodeId, ...]
  numbers: Sequence[int]

  @property
  def nodes(self) -> tuple[base.NodeId, ...]:
    """The nodes along the ring."""
    return tuple(dict.fromkeys(self.owners))

  @property
  def num_segments(self) -> int:
    """Number of finished segments."""
    return self.segments.num_segments

  @property
  def is_done(self) -> bool:
    """Whether all ticks are finished."""
    return not self.segment

  @property
  def segment(self) -> Sequence[tuple[ticks_lib.Tick, ...]]:
    """The ticks of the next segment."""
    size = self.program.sizes.num_ticks
    return self.table.ticks[self.num_segments * size :][:size]

  def dump(self, node: base.NodeId, store: array_store.StepArrays) -> None:
    """Puts all arrays of a local node but its sums into its store, in NumPy."""
    n, sizes = self.nodes.index(node), self.program.sizes
    if (left := self.segments.read(n)) is None:
      return
    carry, size = left.carry, sizes.num_ticks
    found = self.table.find_contents(n, len(left.host) * size, sizes.num_slots)
    arrays = {"activations": store.activations, "grads": store.grads}
    for (kind, key), t in found.sent.items():
      sent = left.host[t // size][1][kind == "grads"]
      arrays[kind][self._number(key)] = _read(sent, t % size)
    for (kind, key), slot in found.slots.items():
      if kind == "residuals":
        store.saved[self._number(key)] = _read(carry.kept, slot)
      else:
        arrays[kind][self._number(key)] = _read(getattr(carry, kind), slot)
    for key, t in found.offloaded.items():
      first = t - t % size
      slot = self.table.offloads(n, first, first + size)[key]
      store.saved[self._number(key)] = _read(left.host[t // size][0], slot)
    store.accumulated |= {*map(self._number, found.accumulated)}
    for key in store.saved.keys() & store.accumulated:
      del store.saved[key]

  def _number(self, key: Key) -> Key:
    return key[0], self.numbers[key[1]]


def find_rows(table: ticks_lib.TickTable, sizes: program_lib.Sizes) -> np.ndarray:
  """Returns the ticks as programs read them, int32[nodes, segments, ticks, NUM_FIELDS]."""
  size = sizes.num_ticks
  parts = [
      table.as_array(first, first + size, sizes.num_slots, sizes.num_owned)
      for first in range(0, len(table.ticks), size)
  ]
  return np.stack(parts, axis=1)


def load(
    program: program_lib.SegmentProgram,
    table: ticks_lib.TickTable,
    n: int,
    store: array_store.StepArrays,
    *,
    share: base.ShareId,
    numbers: Sequence[int],
) -> Begin:
  """Returns the arrays of a node's store that the ticks read, in their slots."""
  begin = Begin(program_lib.host_zeros(program.carry), program_lib.host_zeros(program.fetched))
  start, number = table.start[n], lambda key: (key[0], numbers[key[1]])
  for kind, keys, held in (
      ("activations", start.activations, store.activations),
      ("grads", start.gradients, store.grads),
  ):
    for key in keys:
      slot = table.find_slot(n, kind, key, program.sizes.num_slots)
      _store(getattr(begin.carry, kind), held[number(key)], slot)
  for key, slot in table.fetches(n).items():
    _store(begin.fetched, store.saved[number(key)], slot)
  for hold, stage in enumerate(table.stages_of(n)[: program.sizes.num_owned]):
    weights_lib.load_sums(program, stage, hold, begin.carry.sums, store.accumulators, share)
  return begin


def _read(buffer: base.PyTree, slot: int) -> base.PyTree:
  """Returns the value in a slot."""
  return jax.tree.map(lambda a: np.asarray(a)[0, slot], buffer)


def _store(buffer: base.PyTree, value: base.PyTree, slot: int) -> None:
  """Copies a value into a slot of NumPy arrays."""
  jax.tree.map(lambda a, v: a.__setitem__((0, slot), v), buffer, value)
