"""Arrays over the devices of a mesh, a part on each, joined by dimension 0."""

from collections.abc import Callable, Iterator, Sequence
import functools
from typing import Any

import jax
import numpy as np

from bamboo_jax import base

_P = jax.sharding.PartitionSpec


def make_sharding(
    devices: Sequence[jax.Device], axis: str
) -> jax.sharding.NamedSharding:
  """Returns the sharding of arrays with a part on each device, in order."""
  mesh = jax.sharding.Mesh(np.array(devices), (axis,))
  return jax.sharding.NamedSharding(mesh, _P(axis))


@functools.cache
def over_any(
    function: Callable[..., base.PyTree],
    num_devices: int,
    axis: str,
    **options: Any,
) -> jax.stages.Wrapped:
  """Returns `shard_map` over any devices: JAX traces and lowers it once.

  Arguments say where they lie, not their types (jax 0.11 has that by default).
  """
  mesh = jax.sharding.AbstractMesh(
      (num_devices,), (axis,), axis_types=(jax.sharding.AxisType.Auto,)
  )
  return jax.jit(
      jax.shard_map(
          function, mesh=mesh, in_specs=_P(axis), out_specs=_P(axis), **options
      )
  )


def widen(
    like: base.PyTree, sharding: jax.sharding.NamedSharding
) -> base.PyTree:
  """Returns the shapes of all parts together; `like` are those of one."""
  return jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(
          _widened(a.shape, sharding), a.dtype, sharding=sharding
      ),
      like,
  )


def join(
    parts: Sequence[base.PyTree], sharding: jax.sharding.NamedSharding
) -> base.PyTree:
  """Returns global arrays made of their parts on local devices.

  Args:
    parts: The part on each local device, in the order of the mesh.
    sharding: The sharding of the result.
  """
  glue = lambda *arrays: jax.make_array_from_single_device_arrays(
      _widened(arrays[0].shape, sharding), sharding, list(arrays)
  )
  return jax.tree.map(glue, *parts)


def part_on(device: jax.Device, whole: base.PyTree) -> base.PyTree:
  """Returns the part on a local device."""
  find = lambda a: next(
      s.data for s in a.addressable_shards if s.device == device
  )
  return jax.tree.map(find, whole)


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
  """Returns the array of the next parts, which `cut` returned elsewhere.

  The sharding is that of `cut`, but for the devices.
  """
  held = {}
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


def _widened(
    shape: tuple[int, ...], sharding: jax.sharding.NamedSharding
) -> tuple[int, ...]:
  return (sharding.mesh.size * shape[0], *shape[1:])
