"""Arrays over the devices of a mesh, a part on each, joined by dimension 0."""

from collections.abc import Sequence

import jax

from bamboo_jax import base


def widen(like: base.PyTree, sharding: jax.sharding.NamedSharding) -> base.PyTree:
  """Returns the shapes of all parts together; `like` are those of one."""
  return jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(_widened(a.shape, sharding), a.dtype, sharding=sharding), like
  )


def join(parts: Sequence[base.PyTree], sharding: jax.sharding.NamedSharding) -> base.PyTree:
  """Returns global arrays made of their parts on local devices.

  Args:
    parts: The part on each local device, in the order of the mesh.
  """
  glue = lambda *arrays: jax.make_array_from_single_device_arrays(
      _widened(arrays[0].shape, sharding), sharding, list(arrays)
  )
  return jax.tree.map(glue, *parts)


def part_on(device: jax.Device, whole: base.PyTree) -> base.PyTree:
  """Returns the part on a local device."""
  find = lambda a: next(s.data for s in a.addressable_shards if s.device == device)
  return jax.tree.map(find, whole)


def _widened(shape: tuple[int, ...], sharding: jax.sharding.NamedSharding) -> tuple[int, ...]:
  return (sharding.mesh.size * shape[0], *shape[1:])
