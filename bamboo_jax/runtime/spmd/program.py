"""A part of a step as one program over the nodes of a pipeline.

Every device runs a scan over the ticks of a segment. The table of these ticks
is an argument, so one executable runs any part of any order. It calls no
function of the host and depends only on its arguments.

`jax.shard_map` runs without its check of varying values (`check_vma`). With it,
the derivative with respect to an array that is equal on all devices would be
summed over all of them inside the branch that only the first stage takes, and
hang.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import accelerator, devices as devices_lib
from bamboo_jax.runtime.spmd import (
    buffers as buffers_lib,
    layout as layout_lib,
    passes as passes_lib,
    tick as tick_lib,
    ticks as ticks_lib,
)
from bamboo_jax.runtime.stage import spec as spec_lib

PartitionSpec = jax.sharding.PartitionSpec
_BY_NODE = PartitionSpec(tick_lib.STAGE)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of the buffers of an executable.

  Attributes:
    num_ticks: Ticks of a segment.
    num_microbatches: Microbatches of a pipeline.
    num_slots: See `TickTable.num_slots`.
    num_offloads: Redundant forward passes of one node in a segment, at most.
    num_fetches: Residuals from host memory; 0 at the start of a step.
    num_owned: Stages that a node owns, at most.
    num_held: The same including replicas.
    keeps: Whether sent values are returned too, in host memory, and nothing is
      donated.
  """

  num_ticks: int
  num_microbatches: int
  num_slots: Mapping[str, int]
  num_offloads: int
  num_fetches: int
  num_owned: int
  num_held: int
  keeps: bool

  @property
  def buffers(self) -> dict[str, int]:
    """Slots of the buffers of activations, gradients and residuals of a node."""
    slots = self.num_slots
    # Inputs of redundant passes are those of the replica.
    num_reading = self.num_held if self.num_offloads else self.num_owned
    return {
        "activations": num_reading * slots["activations"],
        "grads": self.num_owned * slots["grads"],
        "residuals": self.num_owned * slots["residuals"] + slots["spare"],
    }

  def widen(self, table: ticks_lib.TickTable) -> "Sizes":
    """Returns sizes with at least the room that the table needs."""
    offloads, fetches = most_offloads(table, self.num_ticks), most_fetches(table)
    return dataclasses.replace(
        self,
        num_slots={k: max(n, self.num_slots[k]) for k, n in table.num_slots.items()},
        num_offloads=max(self.num_offloads, offloads),
        num_fetches=max(self.num_fetches, fetches),
    )


def most_offloads(table: ticks_lib.TickTable, num_ticks: int) -> int:
  """Returns the most redundant passes of a node in a segment of ticks."""
  counts = (
      len(table.offloads(n, t, t + num_ticks))
      for t in range(0, len(table.ticks), num_ticks)
      for n in range(table.num_nodes)
  )
  return max(counts, default=0)


def most_fetches(table: ticks_lib.TickTable) -> int:
  """Returns the most residuals that a node has in host memory at the start."""
  return max(len(held.residuals) for held in table.start)


def find_sizes(
    table: ticks_lib.TickTable, *, num_stages: int, keeps: bool, segment_ticks: int | None = None
) -> tuple[Sizes, Sizes]:
  """Returns the sizes at the start of a step, and of its rest after a death.

  See `engine.SpmdEngine` for the arguments.
  """
  ticks = segment_ticks or (num_stages if keeps else len(table.ticks))
  first = Sizes(
      num_ticks=ticks,
      num_microbatches=table.num_microbatches,
      num_slots=table.num_slots,
      num_offloads=most_offloads(table, ticks),
      num_fetches=0,
      num_owned=1,
      num_held=2 if keeps else 1,  # Its stage and a replica.
      keeps=keeps,
  )
  # The nodes of a pipeline that has lost some own two or more stages, so they need
  # two ticks for a microbatch: half as many are in flight. Sent values may all be
  # there at the start, and residuals come from the host as they are used.
  count = table.num_microbatches
  in_flight = min(count, num_stages)
  rest = dataclasses.replace(
      first,
      num_slots={"activations": count, "grads": count, "residuals": in_flight, "spare": 0},
      num_offloads=0,
      num_fetches=table.num_slots["residuals"] + bool(first.num_offloads) * count,
      num_owned=2,
      num_held=2,
  )
  return first, rest


def host_zeros(shapes: base.PyTree) -> base.PyTree:
  """Returns NumPy arrays [1, ...] for the shapes of one device."""
  return jax.tree.map(lambda a: np.zeros((1, *a.shape), a.dtype), shapes)


class SegmentProgram:
  """The program of a segment for some devices, along the ring.

  Attributes:
    activation: Shapes of the values between stages.
    local: Places in the ring of the devices of this process.
    free: Buffers in host memory that later segments may take.
  """

  def __init__(
      self,
      spec: spec_lib.StageSpec,
      layout: layout_lib.BlockLayout,
      sizes: Sizes,
      *,
      devices: Sequence[jax.Device],
      params: dict[str, base.PyTree],
  ) -> None:
    """Compiles nothing yet.

    `spec` is the whole model; `params` are shapes by layer, as passes read
    them, see `runtime.stage.programs`.
    """
    self.spec, self.layout, self.sizes = spec, layout, sizes
    self._params = params
    self.mesh = jax.sharding.Mesh(np.array(devices), (tick_lib.STAGE,))
    self.local = [n for n, device in enumerate(devices) if devices_lib.is_local(device)]
    self.free: list[base.PyTree] = []
    self._passes = passes_lib.StagePasses(spec, layout)
    self.activation = spec.model.input_shapes(spec.batch)[layout.blocks.first]
    self._kept = self._passes.kept_shapes(self.activation)

  @property
  def weights(self) -> passes_lib.DeviceWeights:
    """Shapes of the weights of one device."""
    layout, names, state = self.layout, self.spec.model.layer_names, self.spec.state
    unit = lambda layers: (
        tuple(self._params[names[i]] for i in layers),
        tuple(state[names[i]].stats for i in layers),
    )
    blocks = buffers_lib.repeat(unit(layout.block), self.sizes.num_held, layout.count)
    return passes_lib.DeviceWeights(blocks, unit(layout.prologue), unit(layout.epilogue))

  @property
  def carry(self) -> buffers_lib.Carry:
    """Shapes of the carry of one device."""
    slots = self.sizes.buffers
    return buffers_lib.Carry(
        activations=buffers_lib.repeat(self.activation, slots["activations"]),
        grads=buffers_lib.repeat(self.activation, slots["grads"]),
        kept=buffers_lib.repeat(self._kept, slots["residuals"]),
        sums=self._passes.sums_shapes(self.sizes.num_owned),
    )

  @property
  def batch(self) -> base.PyTree:
    """Shapes of the microbatches of a pipeline."""
    shapes = {key: self.spec.batch[key] for key in self.spec.batch_keys}
    return buffers_lib.repeat(shapes, self.sizes.num_microbatches)

  @property
  def fetched(self) -> buffers_lib.Kept | None:
    """Shapes of the residuals that one device gets from host memory."""
    count = self.sizes.num_fetches
    return buffers_lib.repeat(self._kept, count) if count else None

  @property
  def host(self) -> tuple[base.PyTree, base.PyTree]:
    """Shapes of the arrays that one device leaves in host memory.

    These are residuals of redundant passes, and the values sent in each tick;
    None for those that it does not keep.
    """
    sizes = self.sizes
    offloaded = sent = None
    if sizes.num_offloads:
      offloaded = buffers_lib.repeat(self._kept, sizes.num_offloads)
    if sizes.keeps:
      sent = buffers_lib.repeat((self.activation,) * 2, sizes.num_ticks)
    return offloaded, sent

  @functools.cached_property
  def segment(self) -> jax.stages.Compiled:
    """The compiled program of a segment.

    Its arguments are the weights, the microbatches, their numbers, the step,
    the table of its ticks, the carry, residuals in host memory, and buffers
    like `host`, donated, whose contents do not matter; all but numbers and step
    have a leading dimension of nodes. It returns the carry, and both `host`.
    """
    sizes = self.sizes
    numbers = jax.ShapeDtypeStruct((sizes.num_microbatches,), jnp.uint32)
    step = jax.ShapeDtypeStruct((), jnp.uint32)
    fields = (sizes.num_ticks, ticks_lib.NUM_FIELDS)
    arguments = (
        self.place(self.weights),
        self.place(self.batch),
        *(numbers, step),
        self.place(jax.ShapeDtypeStruct(fields, jnp.int32)),
        self.place(self.carry),
        self.place(self.fetched, kind="pinned_host"),
        self.place(self.host, kind="pinned_host"),
    )
    everywhere = PartitionSpec()
    program = jax.shard_map(
        self._run,
        mesh=self.mesh,
        in_specs=(*[_BY_NODE] * 2, *[everywhere] * 2, *[_BY_NODE] * 4),
        out_specs=(_BY_NODE,) * 3,
        check_vma=False,
    )
    # With `keeps` the carry stays, as a death may end the segment.
    donated = (7,) if sizes.keeps else (5, 7)
    jitted = jax.jit(program, donate_argnums=donated)
    platform = self.mesh.devices.flat[0].platform
    options = accelerator.find_graph_options(platform, os.environ)
    return jitted.trace(*arguments).lower().compile(options)

  @functools.cached_property
  def start(self) -> Callable[[], buffers_lib.Carry]:
    """The compiled program that makes an empty carry."""
    shapes = self.place(self.carry)
    zeros = jax.jit(
        lambda: buffers_lib.zeros_like(shapes),
        out_shardings=jax.tree.map(lambda a: a.sharding, shapes),
    )
    return zeros.trace().lower().compile()

  def place(self, shapes: base.PyTree, *, kind: str | None = None) -> Any:
    """Returns the shapes of one device as global shapes, sharded over nodes."""
    sharding = jax.sharding.NamedSharding(self.mesh, _BY_NODE, memory_kind=kind)
    like = lambda a: jax.ShapeDtypeStruct((self.mesh.size, *a.shape), a.dtype, sharding=sharding)
    return jax.tree.map(like, shapes)

  def put(self, by_place: Mapping[int, base.PyTree], *, kind: str | None = None) -> base.PyTree:
    """Joins the arrays of local nodes, [1, ...] each, to global arrays."""
    sharding = jax.sharding.NamedSharding(self.mesh, _BY_NODE, memory_kind=kind)
    on = functools.partial(jax.sharding.SingleDeviceSharding, memory_kind=kind)
    parts = [jax.device_put(part, on(self.mesh.devices[n])) for n, part in by_place.items()]

    def join(*arrays: jax.Array) -> jax.Array:
      shape = (self.mesh.size, *arrays[0].shape[1:])
      return jax.make_array_from_single_device_arrays(shape, sharding, list(arrays))

    return jax.tree.map(join, *parts)

  def part(self, n: int, whole: base.PyTree) -> base.PyTree:
    """Returns the part of global arrays on a local device, [1, ...]."""
    device = self.mesh.devices[n]
    find = lambda a: next(s.data for s in a.addressable_shards if s.device == device)
    return jax.tree.map(find, whole)

  def take_host(self) -> base.PyTree:
    """Returns buffers in host memory for a segment, which consumes them."""
    return self.free.pop() if self.free else self.zeros(self.host, kind="pinned_host")

  def zeros(self, shapes: base.PyTree, *, kind: str | None = None) -> base.PyTree:
    """Returns global arrays of zeros, from the shapes of one device."""
    return self.put(dict.fromkeys(self.local, host_zeros(shapes)), kind=kind)

  def _run(
      self,
      weights: passes_lib.DeviceWeights,
      batch: base.PyTree,
      numbers: jax.Array,
      step: jax.Array,
      table: jax.Array,
      carry: buffers_lib.Carry,
      fetched: buffers_lib.Kept | None,
      host: tuple[base.PyTree, base.PyTree],
  ) -> tuple[buffers_lib.Carry, buffers_lib.Kept | None, base.PyTree]:
    sizes = self.sizes
    local = lambda tree: jax.tree.map(lambda a: a[0], tree)
    whole = lambda tree: jax.tree.map(lambda a: a[None], tree)
    body = tick_lib.TickBody(
        passes=self._passes,
        activation=self.activation,
        weights=local(weights),
        batch=local(batch),
        numbers=numbers,
        step=step,
        num_nodes=self.mesh.size,
        fetched=local(fetched),
    )
    # Written inside of the loop: values stacked by the scan leave host memory.
    offloaded, sent = jax.device_put(local(host), jax.memory.Space.Host)

    def run(state: base.PyTree, item: tuple[jax.Array, jax.Array]) -> Any:
      (state, sent), (t, row) = state, item
      state, values = body.run(state, row)
      if sizes.keeps:
        values = jax.device_put(values, jax.memory.Space.Host)
        sent = buffers_lib.put(sent, values, t)
      return (state, sent), None

    (state, sent), _ = jax.lax.scan(
        run, ((local(carry), offloaded), sent), (jnp.arange(sizes.num_ticks), local(table))
    )
    return whole(state[0]), whole(state[1]), whole(sent)
