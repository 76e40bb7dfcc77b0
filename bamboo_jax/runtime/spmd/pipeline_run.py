"""The progress of one pipeline in a step, segment by segment.

A segment donates nothing if a death can be survived, so that a death costs only
the segment in which it happened: the remaining nodes continue the step from
there.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.spmd import buffers as buffers_lib, global_arrays, ring as ring_lib
from bamboo_jax.runtime.spmd.ticks import check, tick_table as table_lib

Key = table_lib.Key
_KINDS = ("activations", "grads")


class PipelineRun:
  """The progress of a pipeline in a step: segments, and their results.

  Attributes:
    owners: The node of each stage.
    nodes: The same nodes once each, along the ring.
    num_segments: Number of finished segments.
    former: The interrupted run that this one continues; None if it began the
      step.
  """

  def __init__(
      self,
      ring: ring_lib.Ring,
      table: table_lib.TickTable,
      inputs: Sequence[base.PyTree],
      *,
      owners: Sequence[base.NodeId],
      former: "PipelineRun | None" = None,
  ) -> None:
    """Begins a step, or continues the one of `former`.

    `inputs` are the first four arguments of `SegmentProgram.segment`.
    """
    program = ring.program
    self.program, self.table, self._ring = program, table, ring
    self.owners, self.nodes = tuple(owners), ring.nodes
    self.former, self.num_segments = former, 0
    self._known: tuple[int, list[check.NodeContents]] = (-1, [])
    self._inputs = inputs
    self._offloaded: list[buffers_lib.Kept] = []
    self._sent: list[tuple[base.PyTree, base.PyTree]] = []
    # Values sent in former runs, by kind, place and key; None on other nodes.
    self._kept: dict[tuple[str, int, Key], base.PyTree | None] = {}
    if former is None:
      self._carry = program.start()
      self._fetched = ring.zeros(program.fetched, kind="pinned_host")
    else:
      self._carry, self._fetched = self._take_over(former)
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
    """Returns the values that a node holds; ignore the slots."""
    n, contents = self._contents(node)
    held = contents.held
    sent: dict[str, dict[Key, int]] = {kind: {} for kind in _KINDS}
    for kind, owner, key in self._kept:
      if owner == n:
        sent[kind][key] = -1
    if self.program.sizes.keeps:
      sent["activations"] |= contents.outputs
      sent["grads"] |= contents.input_grads
    kept = {k: v for k, v in held.host.items() if k not in held.accumulated}
    return dataclasses.replace(
        held,
        activations={**sent["activations"], **held.activations},
        grads={**sent["grads"], **held.grads},
        host=kept | {key: key[1] for key in contents.offloaded},
    )

  def starts(self, owners: Sequence[base.NodeId]) -> dict[base.NodeId, table_lib.Held]:
    """Returns, by node, the values held after gradients are sent again.

    `owners` are the owners of the stages from now on.
    """
    held = {node: self.held(node) for node in dict.fromkeys(owners)}
    for node, own in list(held.items()):
      for stage, m in own.grads:
        if owners[stage] != node:
          owner = held[owners[stage]]
          grads = {**owner.grads, (stage, m): -1}
          held[owners[stage]] = dataclasses.replace(owner, grads=grads)
    return held

  def hold_of(self, node: base.NodeId, stage: base.StageId) -> int | None:
    """Returns the index of `stage` among the stages of `node`, or None."""
    stages = table_lib.stages_of(self.table.owners, self.nodes.index(node))
    return stages.index(stage) if stage in stages else None

  def value(self, kind: str, node: base.NodeId, key: Key) -> base.PyTree:
    """Returns an activation or a gradient that a node holds."""
    n, contents = self._contents(node)
    slots = getattr(contents.held, kind)
    if key in slots:
      return self._read(getattr(self._carry, kind), n, slots[key])
    is_output = kind == "activations"
    made = contents.outputs if is_output else contents.input_grads
    if key in made:
      segment, t = divmod(made[key], self.program.sizes.num_ticks)
      return self._read(self._sent[segment][not is_output], n, t)
    return self._kept[kind, n, key]

  def residuals(self, node: base.NodeId, key: Key) -> buffers_lib.Kept:
    """Returns residuals, from the device or from host memory."""
    n, contents = self._contents(node)
    if key in contents.held.residuals:
      buffer, slot = self._carry.kept, contents.held.residuals[key]
    elif key in contents.offloaded:
      size = self.program.sizes.num_ticks
      segment = contents.offloaded[key] // size
      first = segment * size
      buffer = self._offloaded[segment]
      slot = self.table.offloads(n, first, first + size)[key]
    else:
      buffer, slot = self._fetched, contents.held.host[key]
    return self._read(buffer, n, slot)

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

  def _take_over(self, former: "PipelineRun") -> tuple[buffers_lib.Carry, base.PyTree]:
    """Moves the values of this run's nodes to the slots of its table."""
    former._ring.free.clear()
    program, zeros = self.program, ring_lib.host_zeros
    carries = {n: zeros(program.carry) for n in self._ring.local}
    fetched = {n: zeros(program.fetched) for n in self._ring.local}
    for n, node in enumerate(self.nodes):
      start = self.table.start[n]
      for kind in _KINDS:
        for key, slot in sorted(getattr(start, kind).items()):
          value = self._get(former, kind, key, node)
          if n in carries:
            _store(getattr(carries[n], kind), value, to=(0, slot))
        for key in getattr(former.held(node), kind):
          known = former.value(kind, node, key) if n in carries else None
          self._kept[kind, n, key] = known
    for n, carry in carries.items():
      node, start = self.nodes[n], self.table.start[n]
      for key, slot in start.residuals.items():
        _store(carry.kept, former.residuals(node, key), to=(0, slot))
      if fetched[n] is not None:
        for key, slot in start.host.items():
          _store(fetched[n], former.residuals(node, key), to=(0, slot))
      self._take_sums(carry.sums, former, node)
    return program.put(carries), program.put(fetched, kind="pinned_host")

  def _get(self, former: "PipelineRun", kind: str, key: Key, node: base.NodeId) -> base.PyTree:
    """Returns a value for a node, from any node that holds it."""
    holders = (n for n in (node, *self.nodes) if key in getattr(former.held(n), kind))
    return former.value(kind, next(holders), key)

  def _take_sums(
      self, sums: buffers_lib.MicrobatchSums, former: "PipelineRun", node: base.NodeId
  ) -> None:
    """Fills the sums of a node with those of the stages that it keeps."""
    old = jax.tree.map(np.asarray, former.sums(node))
    for stage in table_lib.stages_of(self.table.owners, self.nodes.index(node)):
      to, source = self.hold_of(node, stage), former.hold_of(node, stage)
      if source is None or to is None:
        continue
      owned = former.program.sizes.num_owned
      is_own = source < owned and to < self.program.sizes.num_owned
      for name in ("stats", "grads") if is_own else ("stats",):
        given = jax.tree.map(lambda a, i=source: a[0, i], getattr(old, name))
        _store(getattr(sums, name), given, to=(0, to))
    for name in ("end_grads", "end_stats", "loss"):
      _store(getattr(sums, name), getattr(old, name), to=())

  def _read(self, buffer: base.PyTree, n: int, slot: int) -> base.PyTree:
    """Returns the value of a node in a slot."""
    own = global_arrays.part_on(self.program.mesh.devices[n], buffer)
    return jax.tree.map(lambda a: np.asarray(a)[0, slot], own)


def _store(buffer: base.PyTree, value: base.PyTree, *, to: tuple[int, ...]) -> None:
  """Copies a value into NumPy arrays."""
  jax.tree.map(lambda a, v: a.__setitem__(to or ..., v), buffer, value)
