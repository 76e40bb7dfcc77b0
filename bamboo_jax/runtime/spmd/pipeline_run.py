"""The progress of one pipeline in a step, segment by segment.

A segment donates nothing if a death can be survived, so that a death costs only
the segment in which it happened: each remaining node dumps the arrays that it
has, and another run loads them and continues the step.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.spmd import buffers as buffers_lib, global_arrays, ring as ring_lib
from bamboo_jax.runtime.spmd.ticks import check, tick_table as table_lib

Key = table_lib.Key
_KINDS = ("activations", "grads", "residuals", "host")
# Readers of arrays by stage and microbatch.
_Readers = dict[Key, Callable[[], base.PyTree]]


@dataclasses.dataclass(frozen=True)
class Dump:
  """The arrays of a step on one node, in NumPy, by stage and microbatch.

  Attributes:
    activations: Outputs of stages.
    grads: Gradients with respect to outputs of stages.
    residuals: Those that were on the device.
    host: Those that were in host memory.
    accumulated: Backward passes whose gradients are in `sums`.
    stages: The stages of `sums`, which it owns, then its replica's.
    num_owned: Number of stages in the sums of gradients.
  """

  activations: Mapping[Key, base.PyTree]
  grads: Mapping[Key, base.PyTree]
  residuals: Mapping[Key, buffers_lib.Kept]
  host: Mapping[Key, buffers_lib.Kept]
  accumulated: frozenset[Key]
  stages: tuple[base.StageId, ...]
  num_owned: int
  sums: buffers_lib.MicrobatchSums

  def held(self) -> table_lib.Held:
    """Returns the keys of its arrays; only slots of `host` count."""
    return _keys({kind: getattr(self, kind) for kind in _KINDS}, self.accumulated)


Dumps = Mapping[base.NodeId, Dump]


def find_starts(dumps: Dumps, owners: Sequence[base.NodeId]) -> dict[base.NodeId, table_lib.Held]:
  """Returns the arrays of each node once gradients have been sent again.

  `owners` are the owners of the stages from now on.
  """
  held = {node: dump.held() for node, dump in dumps.items()}
  for node, dump in dumps.items():
    for stage, m in dump.grads:
      if (owner := owners[stage]) != node:
        grads = {**held[owner].grads, (stage, m): -1}
        held[owner] = dataclasses.replace(held[owner], grads=grads)
  return held


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
      ring: ring_lib.Ring,
      table: table_lib.TickTable,
      inputs: Sequence[base.PyTree],
      *,
      owners: Sequence[base.NodeId],
      dumps: Dumps | None = None,
  ) -> None:
    """Begins a step, or continues it from what its nodes have dumped.

    `inputs` are the first four arguments of `SegmentProgram.segment`.
    """
    program = ring.program
    self.program, self.table, self._ring = program, table, ring
    self.owners, self.nodes = tuple(owners), ring.nodes
    self.is_rest, self.num_segments = dumps is not None, 0
    self._known: tuple[int, list[check.NodeContents]] = (-1, [])
    self._inputs = inputs
    self._offloaded: list[buffers_lib.Kept] = []
    self._sent: list[tuple[base.PyTree, base.PyTree]] = []
    self._before = dumps or {}
    if dumps is None:
      self._carry = program.start()
      self._fetched = ring.zeros(program.fetched, kind="pinned_host")
    else:
      self._carry, self._fetched = self._load(dumps)
    self._pending: tuple[Any, ...] | None = None

  @property
  def is_done(self) -> bool:
    """Whether all ticks are finished."""
    return not self.segment

  @property
  def segment(self) -> Sequence[tuple[table_lib.Tick, ...]]:
    """The ticks of the next segment."""
    first = self.num_segments * self.program.sizes.num_ticks
    return self.table.ticks[first : first + self.program.sizes.num_ticks]

  def start(self) -> None:
    """Starts the next segment."""
    self._pending = self._call(self.num_segments * self.program.sizes.num_ticks, self._carry)

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
    self._ring.free += zip(self._offloaded, self._sent, strict=True)
    self._offloaded, self._sent = [], []

  def sums(self, node: base.NodeId) -> buffers_lib.MicrobatchSums:
    """Returns the sums of a local node, arrays [1, ...]."""
    device = self.program.mesh.devices[self.nodes.index(node)]
    return global_arrays.part_on(device, self._carry.sums)

  def held(self, node: base.NodeId) -> table_lib.Held:
    """Returns the arrays that a node would dump; only slots of `host` count."""
    return _keys(self._readers(node), self._contents(node)[1].held.accumulated)

  def dump(self, node: base.NodeId) -> Dump:
    """Copies the arrays of a local node."""
    n, contents = self._contents(node)
    return Dump(
        **{kind: {k: read() for k, read in r.items()} for kind, r in self._readers(node).items()},
        accumulated=contents.held.accumulated,
        stages=self.table.stages_of(n),
        num_owned=self.program.sizes.num_owned,
        sums=jax.tree.map(np.asarray, self.sums(node)),
    )

  def _readers(self, node: base.NodeId) -> dict[str, _Readers]:
    """Returns functions that read a node's arrays, by kind."""
    n, contents = self._contents(node)
    held, size = contents.held, self.program.sizes.num_ticks

    def reader(buffer: base.PyTree, slot: int) -> Callable[[], base.PyTree]:
      return functools.partial(self._read, buffer, n, slot)

    def read(buffer: base.PyTree, slots: Mapping[Key, int]) -> _Readers:
      return {key: reader(buffer, slot) for key, slot in slots.items()}

    def sent(kind: int, made: Mapping[Key, int]) -> _Readers:
      made = made if self.program.sizes.keeps else {}
      return {key: reader(self._sent[t // size][kind], t % size) for key, t in made.items()}

    def offloaded(key: Key, t: int) -> Callable[[], base.PyTree]:
      first = t - t % size
      slot = self.table.offloads(n, first, first + size)[key]
      return reader(self._offloaded[t // size], slot)

    def known(kind: str) -> _Readers:
      arrays = getattr(self._before[node], kind) if node in self._before else {}
      return {key: functools.partial(lambda a: a, array) for key, array in arrays.items()}

    fetched = {key: slot for key, slot in held.host.items() if key not in held.accumulated}
    carry = self._carry
    activations, grads = sent(0, contents.outputs), sent(1, contents.input_grads)
    moved = {key: offloaded(key, t) for key, t in contents.offloaded.items()}
    return {
        "activations": known("activations")
        | activations
        | read(carry.activations, held.activations),
        "grads": known("grads") | grads | read(carry.grads, held.grads),
        "residuals": read(carry.kept, held.residuals),
        "host": read(self._fetched, fetched) | moved,
    }

  def _call(self, first: int, carry: buffers_lib.Carry) -> tuple[Any, ...]:
    """Starts the segment of a tick and those after it."""
    rows = self.table.as_array(first, first + self.program.sizes.num_ticks)
    table = self.program.put({n: rows[n : n + 1] for n in self._ring.local})
    host = self._ring.take_host()
    return self.program.segment(*self._inputs, table, carry, self._fetched, host)

  def _contents(self, node: base.NodeId) -> tuple[int, check.NodeContents]:
    """Returns a node's place in the ring, and the contents of its slots."""
    if self._known[0] != self.num_segments:
      ticks = self.num_segments * self.program.sizes.num_ticks
      found = check.find_contents(self.table, ticks)
      self._known = (self.num_segments, found)
    n = self.nodes.index(node)
    return n, self._known[1][n]

  def _load(self, dumps: Dumps) -> tuple[buffers_lib.Carry, base.PyTree]:
    """Puts the arrays of all nodes into the slots of the table."""
    program, zeros = self.program, ring_lib.host_zeros
    carries = {n: zeros(program.carry) for n in self._ring.local}
    fetched = {n: zeros(program.fetched) for n in self._ring.local}
    for n, carry in carries.items():
      start, own = self.table.start[n], dumps[self.nodes[n]]
      for kind in ("activations", "grads"):
        for key, slot in getattr(start, kind).items():
          holders = (getattr(dump, kind) for dump in (own, *dumps.values()))
          value = next(arrays[key] for arrays in holders if key in arrays)
          _store(getattr(carry, kind), value, to=(0, slot))
      for key, slot in start.residuals.items():
        _store(carry.kept, own.residuals[key], to=(0, slot))
      if fetched[n] is not None:
        for key, slot in start.host.items():
          _store(fetched[n], own.host[key], to=(0, slot))
      self._load_sums(carry.sums, own, self.table.stages_of(n))
    return program.put(carries), program.put(fetched, kind="pinned_host")

  def _load_sums(
      self, sums: buffers_lib.MicrobatchSums, dump: Dump, stages: Sequence[base.StageId]
  ) -> None:
    """Fills the sums of a node with those of the stages that it keeps."""
    for to, stage in enumerate(stages[: self.program.sizes.num_owned]):
      if stage in dump.stages[: dump.num_owned]:
        source = dump.stages.index(stage)
        given = jax.tree.map(lambda a, i=source: a[0, i], dump.sums.blocks)
        _store(sums.blocks, given, to=(0, to))
    for name in ("prologue", "epilogue"):
      _store(getattr(sums, name), getattr(dump.sums, name), to=())

  def _read(self, buffer: base.PyTree, n: int, slot: int) -> base.PyTree:
    """Returns the value of a node in a slot."""
    own = global_arrays.part_on(self.program.mesh.devices[n], buffer)
    return jax.tree.map(lambda a: np.asarray(a)[0, slot], own)


def _store(buffer: base.PyTree, value: base.PyTree, *, to: tuple[int, ...]) -> None:
  """Copies a value into NumPy arrays."""
  jax.tree.map(lambda a, v: a.__setitem__(to or ..., v), buffer, value)


def _keys(arrays: Mapping[str, Mapping[Key, Any]], accumulated: frozenset[Key]) -> table_lib.Held:
  found = {kind: dict.fromkeys(arrays[kind], -1) for kind in _KINDS}
  found["host"] = {(stage, m): m for stage, m in arrays["host"]}  # The slots of all tables.
  return table_lib.Held(**found, accumulated=accumulated)
