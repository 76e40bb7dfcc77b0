"""Where the arrays of a node lie: on one device, or on a mesh of several.

A mesh has the axes "data" and "tensor". Arrays of examples are sharded over
"data" by their first dimension. Parameters, their gradients and the optimizer's
slots are sharded by `models.sharding`. Everything else, such as counters, is
replicated. XLA adds the communication between the devices, all of which are in
one process, so no death leaves another device waiting.
"""

from collections.abc import Mapping
import functools
from typing import Any, TypeAlias

import jax

from bamboo_jax import base
from bamboo_jax.models import sharding as sharding_lib

Place: TypeAlias = jax.Device | jax.sharding.Mesh
_P = jax.sharding.PartitionSpec


def whole(place: Place) -> jax.sharding.Sharding:
  """Returns the sharding of arrays that are replicated on all devices."""
  if isinstance(place, jax.sharding.Mesh):
    return jax.sharding.NamedSharding(place, _P())
  return jax.sharding.SingleDeviceSharding(place)


def of_any(place: Place, tree: base.PyTree) -> base.PyTree:
  return jax.tree.map(lambda _: whole(place), tree)


def of_data(place: Place, tree: base.PyTree) -> base.PyTree:
  """Returns the shardings of arrays whose first dimension is examples."""
  if not isinstance(place, jax.sharding.Mesh):
    return of_any(place, tree)
  size = place.shape["data"]

  def cut(array: jax.Array) -> jax.sharding.Sharding:
    is_cut = array.ndim > 1 and array.shape[0] % size == 0
    return jax.sharding.NamedSharding(place, _P("data") if is_cut else _P())

  return jax.tree.map(cut, tree)


def of_state(place: Place, tree: base.PyTree, model: str) -> base.PyTree:
  """Returns the shardings of state or gradients, keyed by parameter."""
  if not isinstance(place, jax.sharding.Mesh):
    return of_any(place, tree)
  specs = find_rules(tree, model, place.shape)
  return jax.tree.map(functools.partial(jax.sharding.NamedSharding, place), specs)


def find_rules(tree: base.PyTree, model: str, sizes: Mapping[str, int]) -> base.PyTree:
  """Returns the partition of each array, by `models.sharding`; needs no devices.

  Raises `ValueError` if a shape is not divisible by the devices of an axis.
  """

  def find(path: tuple[Any, ...], array: jax.Array) -> jax.sharding.PartitionSpec:
    names = [str(k.key) for k in path if isinstance(k, jax.tree_util.DictKey)]
    return _P(*sharding_lib.find_rule(model, names, array.shape, sizes))

  return jax.tree_util.tree_map_with_path(find, tree)


def put_shapes(tree: base.PyTree, shardings: base.PyTree) -> base.PyTree:
  """Returns the shapes of the arrays of a tree, as if they lay there."""
  like = lambda a, where: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where)
  return jax.tree.map(like, tree, shardings)


def move(tree: base.PyTree, memory_kind: str) -> base.PyTree:
  """Returns arrays moved to a kind of memory of their own devices."""
  leaves, structure = jax.tree.flatten(tree)
  kinds = [leaf.sharding.memory_kind for leaf in leaves]
  elsewhere = [i for i, kind in enumerate(kinds) if kind != memory_kind]
  there = jax.device_put(
      [leaves[i] for i in elsewhere],
      [leaves[i].sharding.with_memory_kind(memory_kind) for i in elsewhere],
  )
  for i, leaf in zip(elsewhere, there, strict=True):
    leaves[i] = leaf
  return jax.tree.unflatten(structure, leaves)
