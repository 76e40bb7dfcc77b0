"""Sums the gradients of one stage over all shares of the batch.

The batch is split permanently into shares, each summed in its own accumulator.
Shares are added from left to right in order of their index, on any devices, so
the bits of the sum do not depend on the nodes that computed them.

One program per stage runs on a mesh of the devices that hold shares: an ordered
reduce-scatter and an all-gather. The device of each share is an argument, so it
can change without recompilation.

  device 0   a0 a1 | a2 a3      slice 0: a0 a1, b0 b1      a0+b0 a1+b1
  device 1   b0 b1 | b2 b3      slice 1: a2 a3, b2 b3      a2+b2 a3+b3
               all_to_all               add in order        all_gather

With one share on each of D devices, a device sends 2 (D - 1) / D gradients. A
loop takes a part of every array at a time, so besides the result a device needs
memory for about half a gradient, for any number of devices and shares; of small
arrays, for all terms twice.
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.wire import mesh as mesh_lib

# By devices, slots, and shares.
Programs = MutableMapping[tuple[Any, ...], Any]

_AXIS = "pipeline"
# A smaller part is not worth two collectives more.
_SMALL_PART_BYTES = 1 << 18


class ShareSum:
  """Sum of accumulators of one shape over all shares; collective.

  Nothing is donated: if a peer dies in the sum, the accumulators are still
  there.

  Attributes:
    devices: The devices that get it, without repetition, in mesh order.
    program: The compiled program; None if there is one device and one share.
  """

  def __init__(
      self,
      holders: Sequence[jax.Device],
      *,
      like: base.PyTree,
      receivers: Sequence[jax.Device] = (),
      programs: Programs | None = None,
  ) -> None:
    """Compiles the sum of accumulators like `like`, float32 without scalars.

    Args:
      holders: The device of each share.
      receivers: Get the sum as well.
      programs: Compiled before, of accumulators like these; it is put there.
    """
    programs = {} if programs is None else programs
    devices = {*holders, *receivers}
    self.devices = tuple(sorted(devices, key=lambda device: device.id))
    self._shares = {
        device: tuple(i for i, h in enumerate(holders) if h == device)
        for device in self.devices
    }
    self._like = like
    self.program = None
    if len(holders) == len(self.devices) == 1:
      return
    # Devices with fewer shares than others fill up.
    most = max(map(len, self._shares.values()))
    sizes = slot_sizes(len(holders), len(self.devices))
    self._num_slots = next(size for size in sizes if size >= most)
    self._sharding = mesh_lib.make_sharding(self.devices, _AXIS)
    places = [
        self.devices.index(h) * self._num_slots + self._shares[h].index(i)
        for i, h in enumerate(holders)
    ]
    order = np.array(places, np.int32)
    self._order = mesh_lib.join(
        jax.device_put([order] * len(self.devices), list(self.devices)),
        self._sharding,
    )
    key = (self.devices, self._num_slots, len(holders))
    self.program = programs.get(key)
    if self.program is None:  # If two threads compile it, one of them loads.
      slots = mesh_lib.widen([like] * self._num_slots, self._sharding)
      program = mesh_lib.over_any(
          _add_in_order, len(self.devices), _AXIS, check_vma=False
      )
      lowered = program.lower(slots, self._order)
      self.program = programs[key] = compat.compile_apart(lowered)

  def __call__(
      self, accumulators: Mapping[int, base.PyTree]
  ) -> dict[jax.Device, base.PyTree]:
    """Returns the sum, once on each device; `accumulators` are by share."""
    if self.program is None:
      return {self.devices[0]: accumulators[0]}
    rows = [self._slots_of(device, accumulators) for device in self.devices]
    out = self.program(mesh_lib.join(rows, self._sharding), self._order)
    return {device: mesh_lib.part_on(device, out) for device in self.devices}

  def _slots_of(
      self, device: jax.Device, accumulators: Mapping[int, base.PyTree]
  ) -> list[base.PyTree]:
    """Returns the shares on a device, and what fills up its slots."""
    put = functools.partial(_put, device=device)
    slots = [jax.tree.map(put, accumulators[i]) for i in self._shares[device]]
    if not slots:
      zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), self._like)
      slots = [jax.device_put(zeros, device)]
    return slots + [slots[-1]] * (self._num_slots - len(slots))


def _put(array: jax.Array, device: jax.Device) -> jax.Array:
  """Does as `device_put`, which takes a while to find that it need not."""
  return array if array.device == device else jax.device_put(array, device)


def slot_sizes(num_shares: int, num_devices: int) -> list[int]:
  """Returns for how many shares on one device there are programs.

  The first is for shares that are spread evenly; a few more serve all others.
  """
  sizes = [-(-num_shares // num_devices)]
  while sizes[-1] < num_shares:
    sizes.append(min(num_shares, -(-3 * sizes[-1] // 2)))
  return sizes


def _add_in_order(
    slots: Sequence[base.PyTree], order: jax.Array
) -> base.PyTree:
  """Returns the sum of trees over all devices, for use in `shard_map`.

  Args:
    slots: This device's terms, of one shape, float32.
    order: Place of each term as they are added, of all slots of the first
      device, then of the second, and so on; int32.
  """
  like, structure = jax.tree.flatten(slots[0])
  if jax.lax.axis_size(_AXIS) == 1 or not like:
    return jax.tree.map(lambda *terms: _add(terms), *slots)  # All, in order.
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
    total = _add_scattered([cut(term) for term in terms], order)
    parts = jnp.split(total, ends)
    put = jax.lax.dynamic_update_slice_in_dim
    return [*map(put, totals, parts, starts, [0] * len(parts))]

  totals = [jnp.zeros_like(leaf) for leaf in terms[0]]
  totals = jax.lax.fori_loop(0, count, add_part, totals)
  shaped = [t.reshape(l.shape) for t, l in zip(totals, like, strict=True)]
  return structure.unflatten(shaped)


def _add_scattered(slots: Sequence[jax.Array], order: jax.Array) -> jax.Array:
  """Does as `_add_in_order` for flat arrays, each device adding its slice."""
  num_devices, (size,) = jax.lax.axis_size(_AXIS), slots[0].shape
  pad = (0, -size % num_devices)
  flat = jnp.stack([jnp.pad(slot, pad) for slot in slots])
  sliced = flat.reshape(len(slots), num_devices, -1)
  mine = jax.lax.all_to_all(sliced, _AXIS, 1, 0)  # [devices, slots, width]
  mine = mine.reshape(-1, mine.shape[-1])
  total = _add([mine[place] for place in order])
  return jax.lax.all_gather(total, _AXIS, tiled=True)[:size]


def _add(terms: Iterable[jax.Array]) -> jax.Array:
  total, *rest = terms
  for term in rest:
    total = total + term
  return total


def _count_parts(like: Sequence[jax.Array], *, num_slots: int) -> int:
  """Returns a count for which the terms of a part are small together."""
  num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in like)
  return max(1, min(4 * num_slots, num_bytes // _SMALL_PART_BYTES))
