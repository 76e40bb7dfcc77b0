"""The layers of a stage, and the shapes of all arrays that it computes with.

Everything here follows from the model, the shapes of a microbatch and the
optimizer, so that two nodes that hold the same layers agree without messages.

A stage is a range of units (`models.units`), and each unit is a stage by itself.
Only programs and transfers know stages. State is kept by the name of the layer.
Sums are kept by unit, which is identified by the index of its first layer. So
both are independent of the partition. Programs belong to kinds of units and know
no names: their arguments are tuples with an entry for each layer.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import NamedTuple, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.models import layer as layer_lib, linen, model as model_lib, units as units_lib

_T = TypeVar("_T")


class LayerState(flax.struct.PyTreeNode):
  """The state of a layer between steps, or of a unit.

  Of a unit, each field is a tuple with an entry for each layer.

  Attributes:
    params: Parameters, float32.
    slots: State of the optimizer.
    stats: Statistics, such as those of batch normalisation.
  """

  params: base.PyTree
  slots: base.PyTree
  stats: base.PyTree


class Saved(flax.struct.PyTreeNode):
  """Values that the forward pass of a microbatch through a unit keeps.

  Attributes:
    residuals: Without parameters and inputs.
    stats: Statistics after this microbatch, of each layer.
    loss: `layer.Loss.stack`; last unit only.
  """

  residuals: list[jax.Array]
  stats: base.PyTree
  loss: jax.Array | None


class Accumulator(flax.struct.PyTreeNode):
  """Sums over the microbatches of one share of a unit, all float32.

  Attributes:
    grads: Gradients of the sum of losses, of each layer.
    stats: Sums of statistics, of each layer; leaves have at least one dimension.
    loss: Sums of `layer.Loss.stack`; last unit only.
  """

  grads: tuple[base.PyTree, ...]
  stats: tuple[base.PyTree, ...]
  loss: jax.Array | None


@dataclasses.dataclass(frozen=True)
class StageSpec:
  """Everything that the programs of a stage depend on, except the device.

  Attributes:
    first: First layer of the stage; `last` is one past its last layer.
    batch: Shape and dtype of every entry of one microbatch.
    optimizer: Updates the parameters, layer by layer; must not look across
      layers (clipping is a phase of the step).
    remat: Which values forward passes keep, see `models.remat`.
    prng: Name of JAX's random generator that dropout uses.
    is_unit: Whether all its layers share programs, whatever their names.
  """

  model: model_lib.Model
  first: int
  last: int
  batch: Mapping[str, jax.ShapeDtypeStruct]
  optimizer: optax.GradientTransformation
  remat: str = "full"
  seed: int = 0
  prng: str = "threefry2x32"
  is_unit: bool = False

  def __post_init__(self) -> None:
    object.__setattr__(self, "model", self.model.with_remat(self.remat))
    if not self.is_unit:  # For its checks.
      units_lib.split(self.model.layer_names, self.first, self.last)

  def cut(self, bounds: Sequence[int]) -> list["StageSpec"]:
    """Returns the stages between `bounds`, see `plan.partition.Partition`."""
    return [
        dataclasses.replace(self, first=first, last=last)
        for first, last in itertools.pairwise(bounds)
    ]

  @property
  def layers(self) -> tuple[linen.LinenLayer, ...]:
    return self.model.layers[self.first : self.last]

  @functools.cached_property
  def units(self) -> tuple["StageSpec", ...]:
    """The units of the stage, in order, each as a stage of one unit."""
    if self.is_unit:
      return (self,)
    names = self.model.layer_names
    return self._cut_units(units_lib.split(names, self.first, self.last))

  @property
  def single_layers(self) -> tuple["StageSpec", ...]:
    """Each layer of the stage, in order, as a stage of one unit."""
    return self._cut_units(range(i, i + 1) for i in range(self.first, self.last))

  def _cut_units(self, units: Iterable[range]) -> tuple["StageSpec", ...]:
    return tuple(dataclasses.replace(self, first=u.start, last=u.stop, is_unit=True) for u in units)

  @functools.cached_property
  def kind(self) -> Hashable:
    """A key that is equal for stages that differ only in names and indices."""
    layers = tuple((l.kind, l.batch_keys, tuple(t.param for t in l.ties)) for l in self.layers)
    shapes = jax.tree.map(lambda a: (a.shape, str(a.dtype)), (self.inputs, self.pick(self.batch)))
    options = (self.optimizer, self.remat, self.seed, self.prng, self.is_unit)
    return (layers, str(shapes), self.is_last, *options)

  @functools.cached_property
  def pace(self) -> model_lib.Pace:
    """Least time of the passes of all layers."""
    paces = [self.model.paces[n] for n in self.names if n in self.model.paces]
    return model_lib.Pace(
        sum(p.forward_ms for p in paces),
        sum(p.backward_ms for p in paces),
        max((p.jitter for p in paces), default=0.0),
    )

  @functools.cached_property
  def names(self) -> tuple[str, ...]:
    return tuple(layer.name for layer in self.layers)

  @property
  def is_last(self) -> bool:
    """Whether the stage ends with the loss."""
    return self.last == len(self.model.layers)

  @functools.cached_property
  def batch_keys(self) -> tuple[str, ...]:
    """Entries of the microbatch that the stage reads, sorted."""
    return tuple(sorted({k for l in self.layers for k in l.batch_keys}))

  def pick(self, batch: Mapping[str, _T]) -> dict[str, _T]:
    """Returns those entries of a microbatch."""
    return {key: batch[key] for key in self.batch_keys}

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
  def metrics(self) -> tuple[str, ...]:
    """Names of the metrics of training, sorted; see `layer.Loss`."""
    return self.model.metrics(self.batch, train=True)

  @functools.cached_property
  def is_mixed(self) -> bool:
    """Whether some layer of the model has inputs that are not float32."""
    inputs = jax.tree.leaves(self.model.input_shapes(self.batch))
    return any(a.dtype != jnp.float32 for a in inputs)

  @functools.cached_property
  def state(self) -> dict[str, LayerState]:
    """Shapes of the state of each layer."""
    return jax.eval_shape(lambda: init_layers(self))

  @functools.cached_property
  def shapes(self) -> LayerState:
    """The same of these layers as one unit."""
    return take(self, self.state)

  @functools.cached_property
  def accumulator(self) -> Accumulator:
    """Shapes of an accumulator of these layers as one unit."""
    return jax.eval_shape(lambda: zero_accumulator(self))


def init_layers(
    spec: StageSpec, initial: Callable[[str], layer_lib.Variables] | None = None
) -> dict[str, LayerState]:
  """Returns the state before the first step.

  Args:
    initial: Variables by name of the layer; other layers are initialised from
      the seed.
  """
  layers = {}
  draw = functools.partial(spec.model.init_layer, seed=spec.seed, batch_shapes=spec.batch)
  for index, name in enumerate(spec.names, start=spec.first):
    if initial is None:
      variables = draw(index)
    else:
      variables = initial(name)
      known, params = spec.state[name].params, variables.params
      if known.keys() - params.keys():  # Weights of a model without adapters.
        params = {**draw(index).params, **params}
        variables = variables.replace(params=params)
    layer = spec.model.layers[index]
    trained = _drop_frozen(layer, variables.params)
    slots = jax.jit(spec.optimizer.init)(trained)  # One program.
    layers[name] = LayerState(variables.params, slots, variables.stats)
  return layers


def zero_accumulator(unit: StageSpec) -> Accumulator:
  zeros = lambda a: jnp.zeros(a.shape or (1,), jnp.float32)
  return Accumulator(
      grads=jax.tree.map(zeros, drop_frozen(unit, unit.shapes.params)),
      stats=jax.tree.map(zeros, unit.shapes.stats),
      loss=jnp.zeros((2 + len(unit.metrics),), jnp.float32) if unit.is_last else None,
  )


def take(unit: StageSpec, layers: Mapping[str, LayerState]) -> LayerState:
  """Returns the state of a unit."""
  own = [layers[name] for name in unit.names]
  part = lambda field: tuple(getattr(layer, field) for layer in own)
  return LayerState(part("params"), part("slots"), part("stats"))


def by_layer(unit: StageSpec, state: LayerState) -> dict[str, LayerState]:
  """Returns the states of the layers of a unit."""
  layers = map(LayerState, state.params, state.slots, state.stats)
  return dict(zip(unit.names, layers, strict=True))


def drop_frozen(unit: StageSpec, params: Iterable[base.PyTree]) -> tuple[base.PyTree, ...]:
  """Returns the trained parameters of each layer of a unit."""
  return tuple(map(_drop_frozen, unit.layers, params))


def _drop_frozen(layer: linen.LinenLayer, params: base.PyTree) -> dict[str, jax.Array]:
  return {k: v for k, v in params.items() if k.startswith(layer.trained)}


def without_frozen(unit: StageSpec, state: LayerState) -> LayerState:
  """Returns the state of a unit without frozen parameters."""
  return state.replace(params=drop_frozen(unit, state.params))


def add_frozen(state: LayerState, old: LayerState) -> LayerState:
  """Returns the state of a unit with the frozen parameters of an older one."""
  pairs = zip(state.params, old.params, strict=True)
  return state.replace(params=tuple({**was, **new} for new, was in pairs))


class TiedCopy(NamedTuple):
  """One copy of a tied parameter.

  Attributes:
    unit: First layer of its unit.
    layer: Place of its layer in the unit.
  """

  stage: base.StageId
  unit: int
  layer: int
  param: str


def find_ties(specs: Sequence[StageSpec]) -> list[list[TiedCopy]]:
  """Returns the copies of each trained tied parameter, in model order."""
  groups: dict[tuple[str, str], list[TiedCopy]] = {}
  places = {
      name: (stage, unit.first, place)
      for stage, spec in base.by_stage(specs)
      for unit in spec.units
      for place, name in enumerate(unit.names)
  }
  for layer in specs[0].model.layers:
    for tie in layer.trained_ties:
      owner = TiedCopy(*places[tie.layer], tie.layer_param)
      group = groups.setdefault((tie.layer, tie.layer_param), [owner])
      group.append(TiedCopy(*places[layer.name], tie.param))
  return [*groups.values()]


def nbytes(tree: base.PyTree) -> int:
  """Returns the size of all arrays of a tree, or of arrays of these shapes."""
  return sum(a.size * np.dtype(a.dtype).itemsize for a in jax.tree.leaves(tree))
