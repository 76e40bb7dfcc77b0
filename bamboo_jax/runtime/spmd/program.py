"""A part of a step as one program over the nodes of a pipeline.

Every device runs a scan over the ticks of a segment. The table of these ticks
is an argument, so one executable runs any part of any order. It calls no
function of the host and depends only on its arguments.

A segment donates nothing if a death can be survived, so that a death costs only
the segment in which it happened: each remaining node dumps what it has into its
store of arrays, which rows use too, and another program loads the rest of the
step from the stores.

`jax.shard_map` runs without its check of varying values (`check_vma`). With it,
the derivative with respect to an array that is equal on all devices would be
summed over all of them inside the branch that only the first stage takes, and
hang.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import accelerator, devices as devices_lib
from bamboo_jax.runtime.spmd import passes as passes_lib, ticks as ticks_lib
from bamboo_jax.runtime.stage import array_store

_BY_NODE = jax.P(passes_lib.STAGE)


def find_sizes(
    table: ticks_lib.TickTable, *, keeps: bool, segment_ticks: int | None
) -> tuple[ticks_lib.Sizes, ticks_lib.Sizes]:
  """Returns the sizes at the start of a step, and of its rest after a death.

  Args:
    table: The ticks of the step.
    keeps: Whether nodes hold replicas, so that a death can be survived.
    segment_ticks: Ticks of a segment; None for the number of stages, or for all ticks if
      no death can be survived.
  """
  num_ticks = segment_ticks or (table.num_stages if keeps else len(table.ticks))
  first, count = table.least_sizes(num_ticks, keeps=keeps), table.num_microbatches
  # The nodes of a pipeline that has lost some own two or more stages, so they need
  # two ticks for a microbatch: half as many are in flight. Sent values may all be
  # there at the start, and residuals come from the host as they are used.
  rest = first._replace(
      activations=count,
      gradients=count,
      residuals=min(count, table.num_stages),
      spare=0,
      offloads=0,
      fetches=first.residuals + bool(first.offloads) * count,
      owned=2,
  )
  return first, rest


def host_zeros(shapes: base.PyTree) -> Any:
  """Returns NumPy arrays [1, ...] for the shapes of one device."""
  return jax.tree.map(lambda a: np.zeros((1, *a.shape), a.dtype), shapes)


class SegmentProgram:
  """The program of a segment for some devices, along the ring.

  Attributes:
    given, carry, fetched, host: Shapes of its arguments on one device: what passes read;
      what goes from tick to tick; residuals from host memory; and what it leaves there,
      None for arrays that it does not keep.
    local: Places in the ring of the devices of this process.
    free: Buffers in host memory that later segments may take.
  """

  def __init__(
      self, passes: passes_lib.StagePasses, sizes: ticks_lib.Sizes, devices: Sequence[jax.Device]
  ) -> None:
    """Compiles nothing yet."""
    self.passes, self.sizes = passes, sizes
    self.mesh = jax.sharding.Mesh(np.array(devices), (passes_lib.STAGE,))
    self.local = [n for n, device in enumerate(devices) if devices_lib.is_local(device)]
    self.free: list[passes_lib.Arrays] = []
    spec, count, repeat = passes.spec, sizes.num_microbatches, passes_lib.repeat
    number = jax.ShapeDtypeStruct((), np.uint32)
    batch = {key: spec.batch[key] for key in spec.batch_keys}
    self.given = passes_lib.Given(passes.weights(sizes.held), repeat(batch, count), number, number)
    shapes = passes.activation, passes.activation, passes.kept
    received, grads, kept = map(repeat, shapes, sizes.buffers)
    self.carry = passes_lib.Arrays(received, grads, kept, passes.sums(sizes.owned))
    optional = lambda shape, count: repeat(shape, count) if count else None
    self.fetched = optional(passes.kept, sizes.fetches)
    sent = optional(passes.activation, sizes.keeps * sizes.num_ticks)
    self.host = passes_lib.Arrays(sent, sent, optional(passes.kept, sizes.offloads))

  @functools.cached_property
  def segment(self) -> jax.stages.Compiled:
    """The compiled program of a segment.

    Its arguments are `given`, the table of its ticks, the carry, residuals in host
    memory, and buffers like `host`, donated, whose contents do not matter; all have a
    leading dimension of nodes. It returns the carry, and what it leaves in host memory.
    """
    program = jax.shard_map(
        self._run, mesh=self.mesh, in_specs=_BY_NODE, out_specs=_BY_NODE, check_vma=False
    )
    table = jax.ShapeDtypeStruct((self.sizes.num_ticks, *ticks_lib.SHAPE), jnp.int32)
    arguments = self._place((self.given, table, self.carry))
    on_host = self._place((self.fetched, self.host), kind="pinned_host")
    # With `keeps` the carry stays, as a death may end the segment. Unless the memory of all
    # results is known, a donated buffer on the host becomes a carry of its shape.
    donated = (4,) if self.sizes.keeps else (2, 4)
    places = jax.tree.map(lambda a: a.sharding, (arguments[-1], on_host[-1]))
    jitted = jax.jit(program, donate_argnums=donated, out_shardings=places)
    platform = self.mesh.devices.flat[0].platform
    options = accelerator.find_graph_options(platform, os.environ)
    return jitted.trace(*arguments, *on_host).lower().compile(options)

  @functools.cached_property
  def start(self) -> Callable[[], passes_lib.Arrays]:
    """The compiled program that makes an empty carry."""
    shapes = self._place(self.carry)
    shardings = jax.tree.map(lambda a: a.sharding, shapes)
    zeros = jax.jit(lambda: passes_lib.zeros_like(shapes), out_shardings=shardings)
    return zeros.trace().lower().compile()

  def _place(self, shapes: base.PyTree, *, kind: str = "device") -> Any:
    """Returns the shapes of one device as global shapes, sharded over nodes."""
    sharding = jax.sharding.NamedSharding(self.mesh, _BY_NODE, memory_kind=kind)
    like = lambda a: jax.ShapeDtypeStruct((self.mesh.size, *a.shape), a.dtype, sharding=sharding)
    return jax.tree.map(like, shapes)

  def put(self, by_place: Mapping[int, base.PyTree], *, kind: str = "device") -> Any:
    """Joins the arrays of local nodes, [1, ...] each, to global arrays."""
    sharding = jax.sharding.NamedSharding(self.mesh, _BY_NODE, memory_kind=kind)
    on = functools.partial(jax.sharding.SingleDeviceSharding, memory_kind=kind)
    parts = [jax.device_put(part, on(self.mesh.devices[n])) for n, part in by_place.items()]

    def join(*arrays: jax.Array) -> jax.Array:
      shape = (self.mesh.size, *arrays[0].shape[1:])
      return jax.make_array_from_single_device_arrays(shape, sharding, list(arrays))

    return jax.tree.map(join, *parts)

  def part(self, n: int, whole: base.PyTree) -> Any:
    """Returns the part of global arrays on a local device, [1, ...]."""
    device = self.mesh.devices[n]
    find = lambda a: next(s.data for s in a.addressable_shards if s.device == device)
    return jax.tree.map(find, whole)

  def host_zeros(self, shapes: base.PyTree) -> Any:
    """Returns global arrays of zeros in host memory, from the shapes of one device."""
    return self.put(dict.fromkeys(self.local, host_zeros(shapes)), kind="pinned_host")

  def _run(
      self,
      given: passes_lib.Given,
      table: jax.Array,
      carry: passes_lib.Arrays,
      fetched: passes_lib.Kept | None,
      host: passes_lib.Arrays,
  ) -> tuple[passes_lib.Arrays, passes_lib.Arrays]:
    own = jax.tree.map(lambda a: a[0], (given, table, carry, fetched, host))
    given, table, carry, fetched, host = own
    # Written inside of the loop: values stacked by the scan leave host memory.
    host = jax.device_put(host, jax.memory.Space.Host)

    def run(state: Any, item: tuple[jax.Array, jax.Array]) -> Any:
      t, row = item
      (carry, host), sent = self.passes.run_tick(given, fetched, state, row)
      if self.sizes.keeps:
        sent = jax.device_put(sent, jax.memory.Space.Host)
        before = (host.activations, host.gradients)
        activations, gradients = passes_lib.put(before, sent, t)
        host = host.replace(activations=activations, gradients=gradients)
      return (carry, host), None

    state, _ = jax.lax.scan(run, (carry, host), (jnp.arange(self.sizes.num_ticks), table))
    return jax.tree.map(lambda a: a[None], state)


# What a node has when a program continues a step, NumPy arrays [1, ...]: the carry, and
# residuals in host memory.
Begin = tuple[passes_lib.Arrays, passes_lib.Kept | None]


class Left(NamedTuple):
  """What finished segments have left of a node, arrays [1, ...].

  Attributes:
    carry: After the last one.
    host: In host memory, by segment.
  """

  carry: passes_lib.Arrays
  host: Sequence[passes_lib.Arrays]


class LocalSegments:
  """The segments of a share of the batch that this process runs; see `ChildSegments`."""

  def __init__(
      self,
      program: SegmentProgram,
      given: Mapping[int, passes_lib.Given],
      rows: Mapping[int, np.ndarray],
      begin: Mapping[int, Begin] | None = None,
  ) -> None:
    """All mappings are by place in the ring, of local nodes.

    Args:
      given: Arrays [1, ...].
      rows: int32[segments, ticks, ...], see `TickTable.as_array`.
      begin: None at the start of a step.
    """
    self._program, self._given, self._rows = program, program.put(given), rows
    if begin is None:
      carry, self._fetched = program.start(), program.host_zeros(program.fetched)
    else:
      carry = program.put({n: carry for n, (carry, _) in begin.items()})
      fetched = {n: fetched for n, (_, fetched) in begin.items()}
      self._fetched = program.put(fetched, kind="pinned_host")
    self._left = Left(carry, ())  # Replaced as a whole: another thread may read it.
    self._pending: Any = None

  @property
  def num_segments(self) -> int:
    """Number of finished segments."""
    return len(self._left.host)

  @property
  def num_summed(self) -> int:
    """Number of segments that are in `sums`."""
    return self.num_segments

  def start(self) -> None:
    """Starts the next segment."""
    rows = {n: rows[self.num_segments] for n, rows in self._rows.items()}
    self._pending = self._call(rows, self._left.carry)

  def run_idle(self) -> None:
    """Runs a segment without passes, which connects all processes; blocks."""
    idle = {n: np.full_like(rows[0], -1) for n, rows in self._rows.items()}
    jax.block_until_ready(self._call(idle, self._program.start()))

  def finish(self, *, is_lost: bool) -> None:
    """Blocks until the segment is finished; raises its error.

    With `is_lost`, a node of the pipeline is dead, and the results are discarded.
    """
    carry, host = jax.block_until_ready(self._pending)
    if not is_lost:
      self._left = Left(carry, (*self._left.host, host))

  def release(self) -> None:
    """Lets later segments overwrite what these have left on the host."""
    self._program.free += self._left.host
    self._left = self._left._replace(host=())

  def sums(self, n: int) -> passes_lib.Parts:
    """Returns the sums of the local node at a place, arrays [1, ...]."""
    return self.read(n).carry.sums

  def read(self, n: int) -> Left:
    """Returns the arrays that the local node at a place has left."""
    left: Left = self._program.part(n, self._left)
    return left

  def _call(self, rows: Mapping[int, np.ndarray], carry: passes_lib.Arrays) -> Any:
    program, table = self._program, {n: row[None] for n, row in rows.items()}
    host = program.free.pop() if program.free else program.host_zeros(program.host)
    return program.segment(self._given, program.put(table), carry, self._fetched, host)


def load(
    program: SegmentProgram,
    table: ticks_lib.TickTable,
    n: int,
    store: array_store.StepArrays,
    *,
    share: base.ShareId,
    numbers: Sequence[int],
) -> Begin:
  """Returns the arrays of a node's store that the ticks read, in their slots."""
  carry, fetched = host_zeros((program.carry, program.fetched))
  arrays, fetches = arrays_of(store), table.fetches(n)
  for array, life in table.lives[n].items():
    if life.made < 0:
      kind, (stage, m) = array
      buffer, slot = fetched, fetches.get((stage, m))
      if kind != "residuals":
        buffer, slot = getattr(carry, kind), table.find_slot(n, array, program.sizes)
      value = arrays[kind][stage, numbers[m]]
      jax.tree.map(lambda a, v, slot=slot: a.__setitem__((0, slot), v), buffer, value)
  for hold, stage in enumerate(table.stages[n][: program.sizes.owned]):
    program.passes.load_sums(stage, hold, carry.sums, store.accumulators, share)
  return carry, fetched


def arrays_of(store: array_store.StepArrays) -> dict[str, dict[ticks_lib.Key, Any]]:
  """Returns the arrays of a store by kind, see `ticks.KINDS`."""
  arrays = (store.activations, store.grads, store.saved)
  return dict(zip(ticks_lib.KINDS, arrays, strict=True))
