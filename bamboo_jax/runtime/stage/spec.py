"""What a stage is: its layers, and the shapes of all that it computes with.

Everything here follows from the model, the shapes of a microbatch and the
optimizer, so that two nodes that hold the same layers agree without talking.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from bamboo_jax import base
from bamboo_jax.models import layer as layer_lib
from bamboo_jax.models import model as model_lib

# What the forward pass keeps for the backward pass; the rest is recomputed.
REMAT_POLICIES: Mapping[str, Callable[..., Any] | None] = {
    "full": None,
    "dots": jax.checkpoint_policies.dots_saveable,
    "inputs": jax.checkpoint_policies.nothing_saveable,
}


@flax.struct.dataclass
class StageState:
  """A node's part of a stage between steps, each keyed by layer name.

  Attributes:
    params: Parameters, float32.
    slots: State of the optimizer.
    stats: Statistics, such as those of batch normalisation.
  """

  params: dict[str, base.PyTree]
  slots: dict[str, base.PyTree]
  stats: dict[str, base.PyTree]


@flax.struct.dataclass
class LayerState:
  """The part of a `StageState` that belongs to one layer."""

  params: base.PyTree
  slots: base.PyTree
  stats: base.PyTree


@flax.struct.dataclass
class Saved:
  """Values that the forward pass of a microbatch keeps for the backward pass.

  Attributes:
    residuals: Arrays in the order of JAX, without parameters and stage inputs.
    stats: Statistics after this microbatch, keyed by layer name.
    loss: Sum of the losses and their weight, float32 [2]; last stage only.
  """

  residuals: list[jax.Array]
  stats: dict[str, base.PyTree]
  loss: jax.Array | None


@flax.struct.dataclass
class Accumulator:
  """Sums over the microbatches of one share, all float32.

  Attributes:
    grads: Gradients of the sum of losses, keyed by layer name.
    stats: Statistics, keyed by layer name; leaves have at least one dimension.
    loss: Sum of the losses and their weight, [2]; last stage only.
  """

  grads: dict[str, base.PyTree]
  stats: dict[str, base.PyTree]
  loss: jax.Array | None


@dataclasses.dataclass(frozen=True)
class StageSpec:
  """What the programs of a stage depend on, apart from the device.

  Attributes:
    first: First layer of the stage.
    last: One past the last layer of the stage.
    batch: Shape and dtype of every entry of one microbatch.
    optimizer: Updates the parameters, layer by layer; must not look across
      layers (clipping is a phase of the step).
    remat: A key of `REMAT_POLICIES`.
    prng: Name of the generator of JAX that dropout uses.
  """

  model: model_lib.Model
  first: int
  last: int
  batch: Mapping[str, jax.ShapeDtypeStruct]
  optimizer: optax.GradientTransformation
  remat: str = "full"
  seed: int = 0
  prng: str = "threefry2x32"

  def __post_init__(self) -> None:
    if self.remat not in REMAT_POLICIES:
      raise ValueError(
          base.suggest(self.remat, REMAT_POLICIES, what="remat policy")
      )

  @property
  def layers(self) -> tuple[layer_lib.Layer, ...]:
    """The layers of the stage."""
    return self.model.layers[self.first : self.last]

  @property
  def is_last(self) -> bool:
    """Whether the stage ends with the loss."""
    return self.last == len(self.model.layers)

  @functools.cached_property
  def batch_keys(self) -> tuple[str, ...]:
    """Entries of the microbatch that the stage reads, sorted."""
    return tuple(sorted({k for l in self.layers for k in l.batch_keys}))

  @functools.cached_property
  def inputs(self) -> base.PyTree:
    """Shapes of the input; None for the first stage."""
    return self.model.input_shapes(self.batch)[self.first]

  @functools.cached_property
  def outputs(self) -> base.PyTree:
    """Shapes of the output that goes to the next stage; None for the last."""
    if self.is_last:
      return None
    return self.model.input_shapes(self.batch)[self.last]

  @functools.cached_property
  def state(self) -> StageState:
    """Shapes of the state."""
    return jax.eval_shape(lambda: merge_layers(init_layers(self)))

  @functools.cached_property
  def accumulator(self) -> Accumulator:
    """Shapes of an accumulator."""
    return jax.eval_shape(lambda: zero_accumulator(self))


def init_layers(spec: StageSpec) -> dict[str, LayerState]:
  """Returns the state before the first step; depends on the seed only."""
  layers = {}
  for index in range(spec.first, spec.last):
    name = spec.model.layers[index].name
    variables = spec.model.init_layer(
        index, seed=spec.seed, batch_shapes=spec.batch
    )
    slots = spec.optimizer.init(variables.params)
    layers[name] = LayerState(variables.params, slots, variables.stats)
  return layers


def merge_layers(layers: Mapping[str, LayerState]) -> StageState:
  """Returns the state of the stage of these layers."""
  return StageState(
      params={name: layer.params for name, layer in layers.items()},
      slots={name: layer.slots for name, layer in layers.items()},
      stats={name: layer.stats for name, layer in layers.items()},
  )


def split_layers(state: StageState) -> dict[str, LayerState]:
  """Returns the state of each layer of a stage."""
  return {
      name: LayerState(state.params[name], state.slots[name], state.stats[name])
      for name in state.params
  }


def zero_accumulator(spec: StageSpec) -> Accumulator:
  """Returns the accumulator before the first microbatch."""
  zeros = lambda a: jnp.zeros(a.shape or (1,), jnp.float32)
  return Accumulator(
      grads=jax.tree.map(zeros, spec.state.params),
      stats=jax.tree.map(zeros, spec.state.stats),
      loss=jnp.zeros((2,), jnp.float32) if spec.is_last else None,
  )
