"""Many arrays as few: one flat buffer per dtype."""

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base


def pack(tree: base.PyTree) -> dict[str, jax.Array]:
  """Returns the arrays of `tree`, one after the other, by dtype."""
  groups = {}
  for leaf in jax.tree.leaves(tree):
    groups.setdefault(str(leaf.dtype), []).append(leaf.ravel())
  return {name: jnp.concatenate(parts) for name, parts in groups.items()}


def unpack(buffers: dict[str, jax.Array], like: base.PyTree) -> base.PyTree:
  """Returns the packed tree, of the shapes and dtypes of `like`."""
  leaves, structure = jax.tree.flatten(like)
  starts = dict.fromkeys(buffers, 0)
  parts = []
  for leaf in leaves:
    name = str(leaf.dtype)
    start, starts[name] = starts[name], starts[name] + leaf.size
    parts.append(buffers[name][start : starts[name]].reshape(leaf.shape))
  return structure.unflatten(parts)


def shapes(like: base.PyTree) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of the buffers for values shaped as `like`."""
  sizes = {}
  for leaf in jax.tree.leaves(like):
    dtype = np.dtype(leaf.dtype)
    sizes[dtype] = sizes.get(dtype, 0) + leaf.size
  return {
      str(dtype): jax.ShapeDtypeStruct((size,), dtype)
      for dtype, size in sizes.items()
  }
