"""The variables, losses and ties of layers, and names of arrays; `linen` has the layers."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from bamboo_jax import base

Batch = Mapping[str, jax.Array]


class Variables(flax.struct.PyTreeNode):
  """The state of a layer between steps, float32.

  `params` is a dict by name, possibly nested; `stats` are not differentiated,
  such as running averages, and may be empty.
  """

  params: base.PyTree
  stats: base.PyTree


class Loss(flax.struct.PyTreeNode):
  """Result of the last layer for one microbatch, float32 scalars.

  `total` sums the losses of all tokens, in nats; `weight` is the number of
  tokens that count. The loss of a step is the sum of `total` over its
  microbatches divided by that of `weight`, so microbatches may have different
  weights. `metrics` are further sums over the same tokens, by name, such as the
  number of right predictions ("accuracy"); the log has them divided by `weight`.
  """

  total: jax.Array
  weight: jax.Array
  metrics: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)

  def stack(self) -> jax.Array:
    """Returns total, weight and metrics in the order of their names, [2 + metrics]."""
    return jnp.stack([self.total, self.weight, *(self.metrics[k] for k in sorted(self.metrics))])


def name_leaves(tree: base.PyTree) -> dict[str, Any]:
  """Returns the leaves of a pytree by path, such as "dense/kernel"."""
  found: dict[str, Any] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if (name := name_path(path)) in found:
      raise ValueError(f"Two arrays of a pytree are called {name!r}: rename one.")
    found[name] = leaf
  return found


def restore_leaves(named: Mapping[str, Any], like: base.PyTree) -> base.PyTree:
  """Returns a pytree with the structure of `like` and these leaves, see `name_leaves`."""
  return jax.tree.unflatten(jax.tree.structure(like), [named[name] for name in name_leaves(like)])


def name_path(path: tuple[Any, ...]) -> str:
  """Returns the name of a leaf; "params" if it is the whole tree."""
  return jax.tree_util.keystr(path, simple=True, separator="/") or "params"


def sum_losses(losses: jax.Array, counts: jax.Array) -> Loss:
  """Returns the sum of the losses where `counts` is true."""
  return Loss(total=jnp.where(counts, losses, 0).sum(), weight=counts.sum(dtype=jnp.float32))


@dataclasses.dataclass(frozen=True)
class Tie:
  """A parameter that a layer shares with an earlier layer, `layer`.

  Each layer keeps a copy, so that it is complete in any partition. Copies start
  equal and stay equal because each gets the summed gradient of all copies.
  `param` and `layer_param`, its name in the owner, are top-level names.
  """

  param: str
  layer: str
  layer_param: str
