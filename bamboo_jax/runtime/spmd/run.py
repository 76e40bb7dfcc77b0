"""A step of one pipeline on its way, segment by segment.

What a segment has returned stays until the next one is through: a death takes
the segment that it happened in, and nothing else. Then the rest of the step
goes on from there on the nodes that are left.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.spmd import buffers as buffers_lib
from bamboo_jax.runtime.spmd import program as program_lib
from bamboo_jax.schedule.ticks import check
from bamboo_jax.schedule.ticks import table as table_lib

Key = table_lib.Key


class Run:
  """The ticks of a pipeline.

  Attributes:
    owners: The node of each stage, by its number.
    nodes: All of them, along the ring.
    num_segments: Those that are through.
  """

  def __init__(
      self,
      program: program_lib.SegmentProgram,
      table: table_lib.TickTable,
      inputs: Sequence[base.PyTree],
      *,
      owners: Sequence[int],
      former: "Run | None" = None,
  ) -> None:
    """Begins a step, or goes on with what `former` has of it.

    `inputs` are the first four arguments of `SegmentProgram.segment`.
    """
    self.program, self.table = program, table
    self.owners, self.nodes = tuple(owners), tuple(dict.fromkeys(owners))
    self.num_segments = 0
    self._known: tuple[int, list[check.Contents]] = (-1, [])
    self._inputs = inputs
    self._offloaded: list[buffers_lib.Kept] = []
    self._sent: list[tuple[base.PyTree, base.PyTree]] = []
    # What was sent in former runs, by kind, node and key.
    self._kept: dict[tuple[str, int, Key], base.PyTree] = {}
    self._fetched: buffers_lib.Kept | None = None
    if former is None:
      self._carry = program.start()
      if program.sizes.num_fetches:  # Which a whole step does not need.
        empty = jax.tree.map(
            lambda a: np.zeros((1, *a.shape), a.dtype), program.fetched
        )
        places = dict.fromkeys(self._local_places(), empty)
        self._fetched = self._put(places, kind="pinned_host")
    else:
      self._take_over(former)
    self._pending: tuple | None = None

  @property
  def is_done(self) -> bool:
    """Whether all ticks are through."""
    ticks = self.program.sizes.num_ticks
    return self.num_segments * ticks >= len(self.table.ticks)

  @property
  def segment(self) -> Sequence[tuple[table_lib.Tick, ...]]:
    """The ticks of the next segment."""
    first = self.num_segments * self.program.sizes.num_ticks
    return self.table.ticks[first : first + self.program.sizes.num_ticks]

  def start(self) -> None:
    """Starts the next segment."""
    size = self.program.sizes.num_ticks
    first = self.num_segments * size
    rows = self.table.as_array(first, first + size)
    table = self._put({n: rows[n : n + 1] for n in self._local_places()})
    self._pending = self.program.segment(
        *self._inputs, table, self._carry, self._fetched
    )

  def finish(self) -> None:
    """Blocks until the segment is through; raises what has become of it."""
    carry, offloaded, sent = jax.block_until_ready(self._pending)
    self._carry, self._pending = carry, None
    self._offloaded.append(offloaded)
    self._sent.append(sent)
    self.num_segments += 1

  def sums(self, node: int) -> buffers_lib.Sums:
    """Returns the sums of a local node, arrays [1, ...]."""
    return self._local(self._carry.sums, self.nodes.index(node))

  @functools.cached_property
  def num_fetched(self) -> int:
    """Number of redundant backward passes whose residuals are on the host."""
    return sum(
        row[n].backward.host >= 0
        for row in self.table.ticks
        for n in range(len(self.nodes))
    )

  def held(self, node: int) -> table_lib.Held:
    """Returns what a node holds, by its number; places do not count."""
    n, contents = self._contents(node)
    held = contents.held
    sent = {kind: {} for kind in ("activations", "grads")}
    for kind, owner, key in self._kept:
      if owner == n:
        sent[kind][key] = -1
    if self.program.sizes.keeps:
      sent["activations"] |= contents.outputs
      sent["grads"] |= contents.input_grads
    return table_lib.Held(
        activations=sent["activations"] | held.activations,
        grads=sent["grads"] | held.grads,
        residuals=held.residuals,
        host={k: v for k, v in held.host.items() if k not in held.accumulated}
        | {key: key[1] for key in contents.offloaded},
        accumulated=held.accumulated,
    )

  def starts(self, owners: Sequence[int]) -> dict[int, table_lib.Held]:
    """Returns what these owners hold once gradients are sent again."""
    held = {node: self.held(node) for node in dict.fromkeys(owners)}
    for node, own in list(held.items()):
      for stage, m in own.grads:
        if owners[stage] != node:
          owner = held[owners[stage]]
          grads = {**owner.grads, (stage, m): -1}
          held[owners[stage]] = dataclasses.replace(owner, grads=grads)
    return held

  def hold_of(self, node: int, stage: int) -> int | None:
    """Returns which of the stages that a node holds this is."""
    stages = table_lib.stages_of(self.table.owners, self.nodes.index(node))
    return stages.index(stage) if stage in stages else None

  def value(self, kind: str, node: int, key: Key) -> base.PyTree:
    """Returns an activation or a gradient that a node holds."""
    n, contents = self._contents(node)
    slots = getattr(contents.held, kind)
    if key in slots:
      buffer = self._local(getattr(self._carry, kind), n)
      return jax.tree.map(lambda a: np.asarray(a)[0, slots[key]], buffer)
    is_output = kind == "activations"
    made = contents.outputs if is_output else contents.input_grads
    if key in made:
      segment, t = divmod(made[key], self.program.sizes.num_ticks)
      sent = self._local(self._sent[segment][not is_output], n)
      return jax.tree.map(lambda a: np.asarray(a)[0, t], sent)
    return self._kept[kind, n, key]

  def residuals(self, node: int, key: Key) -> buffers_lib.Kept:
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
    return jax.tree.map(
        lambda a: np.asarray(a)[0, slot], self._local(buffer, n)
    )

  def _contents(self, node: int) -> tuple[int, check.Contents]:
    """Returns the place of a node in the ring, and what its slots hold."""
    if self._known[0] != self.num_segments:
      ticks = self.num_segments * self.program.sizes.num_ticks
      found = check.find_contents(self.table, ticks)
      self._known = (self.num_segments, found)
    n = self.nodes.index(node)
    return n, self._known[1][n]

  def _take_over(self, former: "Run") -> None:
    """Moves what the nodes of this run hold to where its table wants it."""
    zeros = lambda shapes: jax.tree.map(
        lambda a: np.zeros((1, *a.shape), a.dtype), shapes
    )
    carries, fetched = {}, {}
    for n in self._local_places():
      node, start = self.nodes[n], self.table.start[n]
      carries[n] = carry = zeros(self.program.carry)
      fetched[n] = host = zeros(self.program.fetched)
      for kind in ("activations", "grads"):
        for key, slot in getattr(start, kind).items():
          holders = [
              other
              for other in (node, *self.nodes)
              if key in getattr(former.held(other), kind)
          ]
          value = former.value(kind, holders[0], key)
          _store(getattr(carry, kind), value, to=(0, slot))
      for key, slot in start.residuals.items():
        _store(carry.kept, former.residuals(node, key), to=(0, slot))
      for key, slot in start.host.items():
        if host is not None:
          _store(host, former.residuals(node, key), to=(0, slot))
      self._take_sums(carry.sums, former, node)
      for kind in ("activations", "grads"):
        for key in getattr(former.held(node), kind):
          self._kept[kind, n, key] = former.value(kind, node, key)
    self._carry = self._put(carries)
    if self.program.sizes.num_fetches:
      self._fetched = self._put(fetched, kind="pinned_host")

  def _take_sums(
      self, sums: buffers_lib.Sums, former: "Run", node: int
  ) -> None:
    """Fills the sums of a node with those of the stages that it still holds."""
    old = jax.tree.map(np.asarray, former.sums(node))
    for stage in table_lib.stages_of(self.table.owners, self.nodes.index(node)):
      to, source = self.hold_of(node, stage), former.hold_of(node, stage)
      if source is None:
        continue
      names = ["stats"]
      owned = former.program.sizes.num_owned
      if source < owned and to < self.program.sizes.num_owned:
        names.append("grads")
      for name in names:
        given = jax.tree.map(lambda a, i=source: a[0, i], getattr(old, name))
        _store(getattr(sums, name), given, to=(0, to))
    for name in ("end_grads", "end_stats", "loss"):
      _store(getattr(sums, name), getattr(old, name), to=())

  def _local_places(self) -> list[int]:
    """Returns the places in the ring of the nodes of this process."""
    devices, here = self.program.mesh.devices, jax.process_index()
    return [n for n, d in enumerate(devices) if d.process_index == here]

  def _put(
      self, by_node: Mapping[int, base.PyTree], *, kind: str | None = None
  ) -> base.PyTree:
    """Returns global arrays of those of each node, [1, ...]."""
    devices = self.program.mesh.devices
    local = []
    for n, tree in by_node.items():
      place = jax.sharding.SingleDeviceSharding(devices[n], memory_kind=kind)
      local.append(jax.device_put(tree, place))
    return self.program.put(local, kind=kind)

  def _local(self, tree: base.PyTree, n: int) -> base.PyTree:
    """Returns the part of a node."""
    device = self.program.mesh.devices[n]
    return jax.tree.map(
        lambda a: next(
            s.data for s in a.addressable_shards if s.device == device
        ),
        tree,
    )


def _store(
    buffer: base.PyTree, value: base.PyTree, *, to: tuple[int, ...]
) -> None:
  """Copies a value into NumPy arrays."""
  jax.tree.map(lambda a, v: a.__setitem__(to or ..., v), buffer, value)
