"""A model is a list of layers, and any range of them can run as a stage.

All randomness depends on the seed and plain counters, so a layer has the same
parameters and dropout under every partition and on every node:

  parameters  seed, index of the layer
  dropout     seed, step, microbatch (of the global batch), index of the layer
"""

from collections.abc import Mapping
import dataclasses
import functools
import math
import random
from typing import Any

import jax

from bamboo_jax import base
from bamboo_jax.models import layer as layer_lib, linen, remat

_INIT_STREAM = 0xFFFFFFFF  # Instead of a step; no step has it.

_LayerShapes = tuple[base.PyTree, layer_lib.Variables]  # Of inputs, variables.


@dataclasses.dataclass(frozen=True)
class Pace:
  """Minimum time of a layer's passes for one microbatch.

  Attributes:
    forward_ms: Mean over forward passes.
    backward_ms: Mean over backward passes.
    jitter: Maximum deviation of a pass from the mean, as a fraction.
  """

  forward_ms: float
  backward_ms: float
  jitter: float = 0.0

  def vary(self, ms: float, key: str) -> float:
    """Returns a random time around `ms`, which depends only on `key`."""
    if not self.jitter:
      return ms
    return ms * random.Random(key).uniform(1 - self.jitter, 1 + self.jitter)


@dataclasses.dataclass(frozen=True)
class Model:
  """Layers in the order in which they run.

  The first layer has no inputs, the last returns a `layer.Loss`.

  Attributes:
    fingerprint: JSON. Models with equal fingerprints have the same parameters
      and compute the same function; `zoo.make_model(**fingerprint)` makes those
      of `zoo`.
    sample: Shapes of one sample of the data; None for some models outside
      `zoo`.
    paces: Minimum times of layers, see `paced`.
  """

  name: str
  layers: tuple[linen.LinenLayer, ...]
  fingerprint: Mapping[str, Any]
  sample: Mapping[str, jax.ShapeDtypeStruct] = dataclasses.field(default_factory=dict)
  paces: Mapping[str, Pace] = dataclasses.field(default_factory=dict)
  _shapes: dict[Any, list[_LayerShapes]] = dataclasses.field(
      default_factory=dict, init=False, repr=False, compare=False
  )
  _metrics: dict[Any, tuple[str, ...]] = dataclasses.field(
      default_factory=dict, init=False, repr=False, compare=False
  )

  def __post_init__(self) -> None:
    if not self.layers:
      raise ValueError(f"Model {self.name!r} needs at least one layer.")
    names = self.layer_names
    for index, layer in enumerate(self.layers):
      if layer.name in names[:index]:
        raise ValueError(f"Two layers are called {layer.name!r}.")
      for tie in layer.ties:
        if tie.layer not in names[:index]:
          raise ValueError(
              f"Layer {layer.name!r} ties {tie.param!r} to {tie.layer!r}, "
              f"which must be an earlier layer, one of {list(names[:index])}."
          )

  @property
  def layer_names(self) -> tuple[str, ...]:
    """Names of the layers in model order."""
    return tuple(layer.name for layer in self.layers)

  def with_remat(self, text: str) -> "Model":
    """Returns the model with the rematerialisation of `remat.of_layers`."""
    policies = remat.of_layers(text, self.layer_names)
    if all(layer.remat == policies[layer.name] for layer in self.layers):
      return self
    layers = [dataclasses.replace(layer, remat=policies[layer.name]) for layer in self.layers]
    return dataclasses.replace(self, layers=tuple(layers))

  def batch_shapes(self, num_samples: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a microbatch of `num_samples` samples."""
    return {
        key: jax.ShapeDtypeStruct((num_samples, *shape.shape), shape.dtype)
        for key, shape in self.sample.items()
    }

  def variable_shapes(self) -> dict[str, layer_lib.Variables]:
    """Returns the shapes of the variables by layer; allocates nothing.

    Without `sample` only a model of one layer that needs no batch has them.
    """
    if not self.sample and hasattr(self.layers[0], "variable_shapes"):
      return {self.layers[0].name: self.layers[0].variable_shapes()}
    shapes = self._layer_shapes(self.batch_shapes(1))
    return {name: variables for name, (_, variables) in zip(self.layer_names, shapes, strict=True)}

  def num_params(self) -> int:
    """Returns the number of parameters, tied ones counted once."""
    shapes = {k: dict(v.params) for k, v in self.variable_shapes().items()}
    for layer in self.layers:
      for tie in layer.ties:
        del shapes[layer.name][tie.param]
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))

  def input_shapes(self, batch: Mapping[str, Any]) -> tuple[base.PyTree, ...]:
    """Returns the shapes of the inputs of each layer; the first is None.

    `batch` is a microbatch or its shapes; raises `ValueError` if it does not
    fit the model.
    """
    return tuple(inputs for inputs, _ in self._layer_shapes(batch))

  def metrics(self, batch: Mapping[str, Any], *, train: bool) -> tuple[str, ...]:
    """Returns the names of the metrics of a step or of an evaluation, sorted.

    `batch` is as for `input_shapes`. Raises `ValueError` if the last layer returns
    no `layer.Loss`, or another metric than a scalar.
    """
    case = (_hashable(jax.tree.map(_shape, dict(batch))), train)
    if case not in self._metrics:
      layer, (inputs, variables) = self.layers[-1], self._layer_shapes(batch)[-1]
      key = jax.eval_shape(lambda: jax.random.key(0)) if train else None
      apply = lambda key, *arrays: layer.apply(*arrays, key=key, train=train)[0]
      read = jax.tree.map(_shape, _read(layer, batch))
      loss = jax.eval_shape(apply, key, variables.params, variables.stats, inputs, read)
      if not isinstance(loss, layer_lib.Loss):
        raise ValueError(
            f"Layer {layer.name!r} must return a layer.Loss, got {type(loss).__name__}."
        )
      for name, value in loss.metrics.items():
        if value.shape != ():
          raise ValueError(f"Metric {name!r} must be a scalar, got an array {value.shape}.")
      self._metrics[case] = tuple(sorted(loss.metrics))
    return self._metrics[case]

  def init_layer(
      self, index: int, *, seed: int, batch_shapes: Mapping[str, Any]
  ) -> layer_lib.Variables:
    """Returns the initial variables of a layer, tied copies included.

    They depend only on `seed` and `index`, not on the size of the batch.
    """
    layer = self.layers[index]
    batch = jax.tree.map(_shape, _read(layer, batch_shapes))
    key = microbatch_key(seed, _INIT_STREAM, index)
    inputs = self.input_shapes(batch_shapes)[index]
    variables = layer.init(key, inputs, batch)
    params = dict(variables.params)
    for tie in layer.ties:
      owner = self.layer_names.index(tie.layer)
      first = self.init_layer(owner, seed=seed, batch_shapes=batch_shapes)
      params[tie.param] = first.params[tie.layer_param]
    return variables.replace(params=params)

  def _layer_shapes(self, batch: Mapping[str, Any]) -> list[_LayerShapes]:
    batch = jax.tree.map(_shape, dict(batch))
    cache_key = _hashable(batch)
    if cache_key in self._shapes:
      return self._shapes[cache_key]
    key = jax.eval_shape(lambda: jax.random.key(0))  # Needs no device.
    traced, shapes, inputs = {}, [], None
    for layer in self.layers:
      read = _read(layer, batch)
      case = (layer.kind, _hashable((inputs, read)))
      if case not in traced:
        made = jax.eval_shape(layer.init, key, inputs, read)
        apply = functools.partial(layer.apply, key=None, train=False)
        traced[case] = made, jax.eval_shape(apply, made.params, made.stats, inputs, read)[0]
      variables, outputs = traced[case]
      shapes.append((inputs, variables))
      inputs = outputs
    params = {name: dict(v.params) for name, (_, v) in zip(self.layer_names, shapes, strict=True)}
    for layer in self.layers:
      for tie in layer.ties:
        ours, theirs = params[layer.name], params[tie.layer]
        shape = getattr(ours.get(tie.param), "shape", None)
        if shape is None or shape != getattr(theirs.get(tie.layer_param), "shape", None):
          raise ValueError(
              f"Layer {layer.name!r} ties {tie.param!r} to {tie.layer_param!r} of {tie.layer!r}, "
              f"must be arrays of one shape; they have only {sorted(ours)} and {sorted(theirs)}."
          )
    self._shapes[cache_key] = shapes
    return shapes


def microbatch_key(
    seed: int, step: int | jax.Array, microbatch: int | jax.Array, *, impl: str = "threefry2x32"
) -> jax.Array:
  """Returns the random key of a microbatch, an argument of `apply_range`.

  `impl` is a PRNG of JAX: "threefry2x32", or "rbg", which is faster on
  accelerators, where its numbers depend on the compiler.
  """
  key = jax.random.key(seed, impl=impl)
  return jax.random.fold_in(jax.random.fold_in(key, step), microbatch)


def apply_range(
    model: Model,
    first: int,
    last: int,
    params: Mapping[str, base.PyTree],
    stats: Mapping[str, base.PyTree],
    inputs: base.PyTree,
    batch: layer_lib.Batch,
    *,
    key: jax.Array | None,
    train: bool,
    index: jax.Array | int | None = None,
) -> tuple[base.PyTree, dict[str, base.PyTree]]:
  """Runs layers `first` up to, not including, `last`, as a stage does.

  Args:
    inputs: Output of layer `first - 1`; None if `first` is 0.
    batch: Needs only the entries that these layers read.
    key: See `microbatch_key`; may be None if no layer draws random numbers.
    index: Index of the first layer in random keys, by default `first`. With it,
      equal layers elsewhere in the model can share a program.

  Returns:
    The output of the last of these layers, and their statistics by name.
  """
  new_stats = {}
  index = first if index is None else index
  for position, layer in enumerate(model.layers[first:last]):
    inputs, new_stats[layer.name] = layer.apply(
        params[layer.name],
        stats[layer.name],
        inputs,
        _read(layer, batch),
        key=None if key is None else jax.random.fold_in(key, index + position),
        train=train,
    )
  if isinstance(inputs, layer_lib.Loss):  # An infinite derivative of a metric harms nothing.
    inputs = inputs.replace(metrics=jax.lax.stop_gradient(inputs.metrics))
  return inputs, new_stats


def _read(layer: linen.LinenLayer, batch: Mapping[str, Any]) -> dict[str, Any]:
  missing = [k for k in layer.batch_keys if k not in batch]
  if missing:
    raise ValueError(
        f"Layer {layer.name!r} reads {missing} of the batch, which has only " f"{sorted(batch)}."
    )
  return {k: batch[k] for k in layer.batch_keys}


def _shape(array: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _hashable(tree: base.PyTree) -> Any:
  leaves, structure = jax.tree.flatten(tree)
  return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
