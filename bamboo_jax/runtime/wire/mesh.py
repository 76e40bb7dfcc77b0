"""Cuts arrays over the devices of a mesh into parts, and joins these again."""

from collections.abc import Iterator
import functools
from typing import Any

import jax
import numpy as np


def cut(array: Any, sharding: jax.sharding.Sharding) -> list[Any]:
  """Returns the distinct parts of an array, in the order of their devices.

  An array with that sharding is not gathered: a part is what a device holds.
  """
  parts = _find_parts(array.shape, sharding)
  if isinstance(array, jax.Array):
    if array.sharding.is_equivalent_to(sharding, array.ndim):
      held = {shard.device: shard.data for shard in array.addressable_shards}
      return [held[devices[0]] for devices, _ in parts]
  whole = np.asarray(array)
  return [whole[index] for _, index in parts]


def paste(
    parts: Iterator[Any],
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
) -> jax.Array:
  """Returns an array joined from the next parts, which `cut` made elsewhere.

  `sharding` equals that of `cut`, but for the devices.
  """
  held: dict[jax.Device, jax.Array] = {}
  for devices, _ in _find_parts(shape, sharding):
    part = next(parts)
    held |= {device: jax.device_put(part, device) for device in devices}
  return jax.make_array_from_single_device_arrays(
      shape, sharding, [held[d] for d in sharding.devices_indices_map(shape)]
  )


@functools.lru_cache(4096)
def _find_parts(
    shape: tuple[int, ...], sharding: jax.sharding.Sharding
) -> list[tuple[list[jax.Device], tuple[slice, ...]]]:
  """Returns the distinct parts: the devices that hold one, and its index."""
  found: dict[Any, tuple[list[jax.Device], tuple[slice, ...]]] = {}
  for device, index in sharding.devices_indices_map(shape).items():
    key = tuple((s.start, s.stop) for s in index)
    found.setdefault(key, ([], index))[0].append(device)
  return [*found.values()]
