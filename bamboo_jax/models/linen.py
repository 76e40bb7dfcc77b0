"""Makes a layer of a flax linen module.

The module is called as `module(inputs, batch, train=train)`. Its collection
`params` holds parameters; all other collections are statistics.
"""

from collections.abc import Hashable
import dataclasses
import functools

from flax import errors
import flax.linen as nn
import jax

from bamboo_jax import base
from bamboo_jax.models import layer as layer_lib


@dataclasses.dataclass(frozen=True)
class LinenLayer:
  """A `layer.Layer` that computes what `module` computes."""

  name: str
  module: nn.Module
  batch_keys: tuple[str, ...] = ()
  ties: tuple[layer_lib.Tie, ...] = ()

  @property
  def kind(self) -> Hashable:
    """The module and what it reads; the name does not matter."""
    return self.module, self.batch_keys

  def init(
      self,
      key: jax.Array,
      inputs: base.PyTree,
      batch: layer_lib.Batch,
  ) -> layer_lib.Variables:
    """See `layer.Layer`; compiled once for layers of one kind."""
    leaves, structure = jax.tree.flatten((inputs, dict(batch)))
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves)
    return _init(self.module, structure, shapes, key)

  def apply(
      self,
      params: base.PyTree,
      stats: base.PyTree,
      inputs: base.PyTree,
      batch: layer_lib.Batch,
      *,
      key: jax.Array | None,
      train: bool,
  ) -> tuple[base.PyTree, base.PyTree]:
    """Raises `ValueError` if the module draws random numbers without `key`."""
    try:
      outputs, updated = self.module.apply(
          {"params": params, **stats},
          inputs,
          batch,
          train=train,
          rngs=None if key is None else {"dropout": key},
          mutable=list(stats) if train else [],
      )
    except errors.InvalidRngError as error:
      raise ValueError(
          f"Layer {self.name!r} needs a key, because it draws random numbers."
      ) from error
    return outputs, {**stats, **updated}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _init(
    module: nn.Module,
    structure: jax.tree_util.PyTreeDef,
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    key: jax.Array,
) -> layer_lib.Variables:
  inputs, batch = jax.tree.unflatten(structure, shapes)
  variables = module.lazy_init(
      {"params": key},
      inputs,
      batch,
      method=lambda module, *args: module(*args, train=False),
  )
  params = variables.pop("params", {})
  return layer_lib.Variables(params=params, stats=variables)
