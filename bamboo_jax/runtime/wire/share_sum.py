"""Sums the gradients of one stage over all shares of the batch.

The batch is cut for good into shares, each summed in its own accumulator. Here
the shares are added left to right in order of their index, whatever device they
lie on, so that the bits of the sum do not depend on who computed what.

One program per stage runs on a mesh of the devices that hold shares, in
pipeline order: an ordered reduce-scatter and an all-gather.

  device 0   a0 a1 | a2 a3      slice 0: a0 a1, b0 b1      a0+b0 a1+b1
  device 1   b0 b1 | b2 b3      slice 1: a2 a3, b2 b3      a2+b2 a3+b3
               all_to_all               add in order        all_gather

With one share on each of D devices, a device sends 2 (D - 1) / D gradients. A
loop takes a part of every array at a time, so that besides the result a device
needs memory for about half a gradient, whatever the numbers of devices and
shares are; of small ones, for all terms twice.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base

_P = jax.sharding.PartitionSpec

# A smaller part is not worth two collectives more.
_SMALL_PART_BYTES = 1 << 18


class ShareSum:
  """Sum of accumulators of one shape over all shares; collective.

  Nothing is donated: if a peer dies in the sum, the accumulators are still
  there.

  Attributes:
    devices: The devices that hold shares, without repetition, in mesh order.
    program: The compiled program; None if there is one share.
  """

  def __init__(
      self, holders: Sequence[jax.Device], *, like: base.PyTree
  ) -> None:
    """Compiles the sum of accumulators like `like`, float32 without scalars."""
    self.devices = tuple(dict.fromkeys(holders))
    self._shares = {
        device: tuple(i for i, h in enumerate(holders) if h == device)
        for device in self.devices
    }
    # Devices with fewer shares than others fill up with one they have.
    self._num_slots = max(len(shares) for shares in self._shares.values())
    self._order = tuple(
        (self.devices.index(h), self._shares[h].index(i))
        for i, h in enumerate(holders)
    )
    self._like = like
    self.program = None
    if len(holders) == 1:
      return
    mesh = jax.sharding.Mesh(np.array(self.devices), ("pipeline",))
    self._sharding = jax.sharding.NamedSharding(mesh, _P("pipeline"))
    arguments = jax.tree.map(self._global_struct, [like] * self._num_slots)
    program = jax.shard_map(
        lambda slots: add_in_order(slots, "pipeline", order=self._order),
        mesh=mesh,
        in_specs=_P("pipeline"),
        out_specs=_P("pipeline"),
        check_vma=False,
    )
    self.program = jax.jit(program).lower(arguments).compile()

  def __call__(
      self, accumulators: Mapping[int, base.PyTree]
  ) -> dict[jax.Device, base.PyTree]:
    """Returns the sum, once on each local holder; local shares by index."""
    if self.program is None:
      return {self.devices[0]: accumulators[0]}
    local = [d for d in self.devices if self._shares[d][0] in accumulators]
    slots = []
    for slot in range(self._num_slots):
      held = [
          self._shares[d][min(slot, len(self._shares[d]) - 1)] for d in local
      ]
      slots.append(
          jax.tree.map(self._glue, self._like, *[accumulators[i] for i in held])
      )
    out = self.program(slots)
    split = lambda device: jax.tree.map(
        lambda a: next(
            s.data for s in a.addressable_shards if s.device == device
        ),
        out,
    )
    return {device: split(device) for device in local}

  def _global_shape(self, like: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    return (len(self.devices) * like.shape[0], *like.shape[1:])

  def _global_struct(self, like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        self._global_shape(like), like.dtype, sharding=self._sharding
    )

  def _glue(self, like: jax.ShapeDtypeStruct, *parts: jax.Array) -> jax.Array:
    return jax.make_array_from_single_device_arrays(
        self._global_shape(like), self._sharding, list(parts)
    )


def add_in_order(
    slots: Sequence[base.PyTree],
    axis: str,
    *,
    order: Sequence[tuple[int, int]],
) -> base.PyTree:
  """Returns the sum of trees over a mesh axis, for use in `shard_map`.

  Args:
    slots: This device's terms, of one shape, float32.
    axis: Name of the mesh axis.
    order: Device and slot of each term, as they are added.
  """
  like, structure = jax.tree.flatten(slots[0])
  if jax.lax.axis_size(axis) == 1 or not like:
    add = lambda *terms: _add([terms[slot] for _, slot in order])
    return jax.tree.map(add, *slots)
  terms = [[leaf.ravel() for leaf in jax.tree.leaves(s)] for s in slots]
  count = _count_parts(like, num_slots=len(slots))
  widths = [-(-leaf.size // count) for leaf in like]
  ends = np.cumsum(widths)[:-1]

  def add_part(part: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
    # The last part may overlap the one before it.
    starts = [
        jnp.minimum(part * width, leaf.size - width)
        for width, leaf in zip(widths, like, strict=True)
    ]
    cut = lambda leaves: jnp.concatenate(
        list(map(jax.lax.dynamic_slice_in_dim, leaves, starts, widths))
    )
    total = _add_scattered([cut(term) for term in terms], axis, order=order)
    parts = jnp.split(total, ends)
    put = jax.lax.dynamic_update_slice_in_dim
    return [*map(put, totals, parts, starts, [0] * len(parts))]

  totals = [jnp.zeros_like(leaf) for leaf in terms[0]]
  totals = jax.lax.fori_loop(0, count, add_part, totals)
  shaped = [t.reshape(l.shape) for t, l in zip(totals, like, strict=True)]
  return structure.unflatten(shaped)


def _add_scattered(
    slots: Sequence[jax.Array], axis: str, *, order: Sequence[tuple[int, int]]
) -> jax.Array:
  """Returns `add_in_order` of flat arrays, each device adding its slice."""
  num_devices, (size,) = jax.lax.axis_size(axis), slots[0].shape
  pad = (0, -size % num_devices)
  flat = jnp.stack([jnp.pad(slot, pad) for slot in slots])
  sliced = flat.reshape(len(slots), num_devices, -1)
  mine = jax.lax.all_to_all(sliced, axis, 1, 0)  # [devices, slots, width]
  total = _add([mine[place] for place in order])
  return jax.lax.all_gather(total, axis, tiled=True)[:size]


def _add(terms: Sequence[jax.Array]) -> jax.Array:
  total, *rest = terms
  for term in rest:
    total = total + term
  return total


def _count_parts(like: Sequence[jax.Array], *, num_slots: int) -> int:
  """Returns a count for which the terms of a part are small together."""
  num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in like)
  return max(1, min(4 * num_slots, num_bytes // _SMALL_PART_BYTES))
