"""Sums, zeros and shapes of trees of arrays."""

import jax
import jax.numpy as jnp

from bamboo_jax import base


def add(total: base.PyTree, more: base.PyTree) -> base.PyTree:
  """Returns the sum of two trees, in the dtype of the first."""
  return jax.tree.map(lambda t, m: t + m.astype(t.dtype), total, more)


def add_some(
    total: dict[str, base.PyTree], more: dict[str, base.PyTree]
) -> dict[str, base.PyTree]:
  """Returns `total`, to whose entries those of `more` are added."""
  return total | add({name: total[name] for name in more}, more)


def zeros_like(shapes: base.PyTree) -> base.PyTree:
  """Returns zeros of these shapes."""
  return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


def repeat(shapes: base.PyTree, *counts: int) -> base.PyTree:
  """Returns shapes with more leading dimensions."""
  return jax.tree.map(
      lambda a: jax.ShapeDtypeStruct((*counts, *a.shape), a.dtype), shapes
  )
