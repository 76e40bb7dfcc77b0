"""A layer: the smallest unit of a model that a partition can move.

A layer names the entries of the microbatch that it reads and the parameters
that it shares; a module of flax computes it. Layers pass pytrees of float
arrays; integers, such as tokens, come from the microbatch. BERT, ResNet and
GNMT fit too: skip connections are part of the outputs, and running averages are
statistics.

The module is called as `module(inputs, batch, train=train)`. Its collection
`params` holds parameters; all other collections are statistics. The layers of
this package are functions, see `make_layer`.
"""

from collections.abc import Callable, Hashable
import dataclasses
import functools
from typing import Any

from flax import errors
import flax.linen as nn
import jax

from bamboo_jax import base
from bamboo_jax.models import dropout, layer as layer_lib, remat


@dataclasses.dataclass(frozen=True)
class LinenLayer:
  """A layer computed by `module`; its methods are pure and traceable.

  Attributes:
    name: Unique in the model; keys parameters and checkpoints.
    batch_keys: Entries of the microbatch that the layer reads.
    ties: Parameters shared with earlier layers.
    remat: Values kept for its backward pass, a key of `remat.POLICIES`.
    trained: Prefix of the names of its trained parameters, by default of all.
      Others are frozen: they have no gradients and no slots, and no step
      changes them.
  """

  name: str
  module: nn.Module
  batch_keys: tuple[str, ...] = ()
  ties: tuple[layer_lib.Tie, ...] = ()
  remat: str = "full"
  trained: str = ""

  @property
  def trained_ties(self) -> tuple[layer_lib.Tie, ...]:
    """The ties of parameters that are not frozen."""
    return tuple(tie for tie in self.ties if tie.param.startswith(self.trained))

  @property
  def kind(self) -> Hashable:
    """Layers of equal kind compute the same function, so one is measured."""
    return self.module, self.batch_keys, self.remat, self.trained

  def init(
      self, key: jax.Array, inputs: base.PyTree, batch: layer_lib.Batch
  ) -> layer_lib.Variables:
    """Returns the initial variables; compiled once for layers of one kind.

    `inputs` are the output of the previous layer (None if first), `batch` the
    entries `batch_keys` of a microbatch; only their shapes are read.
    """
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
    """Returns the outputs, a `Loss` if last, and the new statistics.

    A step replaces the statistics by the mean over its microbatches of the
    returned ones, each computed from `stats`, those before the step. `train`
    turns on dropout and statistics of the microbatch. Raises `ValueError` if
    the module draws random numbers without `key`.
    """
    run = functools.partial(self._apply, train)
    policy = self.remat if train else "full"
    try:
      outputs, updated = remat.checkpoint_keyed(run, policy, key)(params, stats, inputs, batch)
    except errors.InvalidRngError as error:
      raise ValueError(
          f"Layer {self.name!r} needs a key, because it draws random numbers."
      ) from error
    return outputs, {**stats, **updated}

  def _apply(
      self,
      train: bool,
      key: jax.Array | None,
      params: base.PyTree,
      stats: base.PyTree,
      *data: base.PyTree,
  ) -> tuple[base.PyTree, base.PyTree]:
    return self.module.apply(
        {"params": params, **stats},
        *data,
        train=train,
        rngs=None if key is None else {"dropout": key},
        mutable=list(stats) if train else [],
    )


@dataclasses.dataclass(frozen=True)
class Call:
  """Gives a function of `make_layer` its parameters and random keys."""

  module: nn.Module
  train: bool

  def param(self, name: str, init: Callable[..., jax.Array], *shape: int) -> jax.Array:
    """Returns a parameter of the layer, float32."""
    return self.module.param(name, init, shape)

  def key(self, rate: float) -> jax.Array | None:
    """Returns a random key; None if nothing is to be dropped."""
    return self.module.make_rng("dropout") if self.train and rate > 0 else None

  def drop(self, x: jax.Array, rate: float) -> jax.Array:
    """Returns `x` with elements dropped in training."""
    return dropout.drop(x, self.key(rate), rate=rate)


class Function(nn.Module):
  """A function as a module; see `make_layer`."""

  function: Callable[..., base.PyTree]
  options: tuple[tuple[str, Hashable], ...]

  @nn.compact
  def __call__(self, inputs: base.PyTree, batch: layer_lib.Batch, *, train: bool) -> base.PyTree:
    """Returns the result of the function."""
    call = Call(self, train)
    return self.function(call, inputs, batch, **dict(self.options))


def make_layer(
    name: str,
    function: Callable[..., base.PyTree],
    batch_keys: tuple[str, ...] = (),
    ties: tuple[layer_lib.Tie, ...] = (),
    **options: Any,
) -> LinenLayer:
  """Returns the layer of `function(call, inputs, batch, **options)`.

  `call` is a `Call`. The function may also call modules of flax, which then
  become parts of the layer. Layers of one function with equal options are of
  one kind.
  """
  module = Function(function, tuple(options.items()))
  return LinenLayer(name, module, batch_keys, ties)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _init(
    module: nn.Module,
    structure: jax.tree_util.PyTreeDef,
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    key: jax.Array,
) -> layer_lib.Variables:
  inputs, batch = jax.tree.unflatten(structure, shapes)
  variables: Any = module.lazy_init(
      {"params": key}, inputs, batch, method=lambda module, *args: module(*args, train=False)
  )
  params = variables.pop("params", {})
  return layer_lib.Variables(params=params, stats=variables)
