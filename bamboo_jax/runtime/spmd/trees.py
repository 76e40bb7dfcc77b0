"""Sums, zeros and shapes of trees of arrays."""

from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


def add(total: PyTree, more: PyTree) -> PyTree:
  """Returns the sum of two trees, in the dtype of the first."""
  return jax.tree.map(lambda t, m: t + m.astype(t.dtype), total, more)


def add_some(
    total: dict[str, PyTree], more: dict[str, PyTree]
) -> dict[str, PyTree]:
  """Returns `total`, to whose entries those of `more` are added."""
  return total | add({name: total[name] for name in more}, more)


def zeros_like(shapes: PyTree) -> PyTree:
  """Returns zeros of these shapes."""
  return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


def repeat(shapes: PyTree, *counts: int) -> PyTree:
  """Returns shapes with more leading dimensions."""
  return jax.tree.map(
      lambda a: jax.ShapeDtypeStruct((*counts, *a.shape), a.dtype), shapes
  )
