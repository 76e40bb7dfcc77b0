"""The user's own training function as a model of one layer.

A pure function that returns a loss needs no pipeline: each node holds the whole
model and computes its part of the batch. Such nodes are replicas of each other,
so with `pipeline.num_stages=1` a death costs the dead node's part of the step,
which another replica computes again.
"""

from collections.abc import Callable, Hashable, Mapping
import dataclasses
import functools
import inspect
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.models import layer as layer_lib, model as model_lib, remat as remat_lib

# Name of the only layer; it keys the parameters in checkpoints.
LAYER = "model"


def from_loss(
    init: Callable[[jax.Array], base.PyTree],
    loss: Callable[..., Any],
    *,
    has_aux: bool = False,
    has_state: bool = False,
    evaluate: Callable[..., Mapping[str, Any]] | None = None,
    batch_keys: tuple[str, ...] = ("inputs", "targets"),
    name: str = "from_loss",
) -> model_lib.Model:
  """Returns a model of one layer that trains a pure JAX function.

  It fits flax.linen, flax.nnx (`nnx.split`, `nnx.merge`), equinox
  (`eqx.partition`, `eqx.combine`) and plain functions.

  Args:
    init: `init(key)` returns the parameters, any pytree of float32 arrays. The
      same key must give the same parameters: every node calls it.
    loss: `loss(params, batch)` returns the mean loss of the samples in `batch`,
      a scalar; or a `layer.Loss` if samples have different weights. `batch` has
      the arrays `batch_keys`, each [samples, ...]. An optional argument `key`
      is a random key of the step and the microbatch, None in evaluation.
    has_aux: Whether `loss` returns (loss, metrics), as for `jax.value_and_grad`.
      `metrics` are scalars by name, means over the samples in `batch`. Their
      means over the whole batch stand in the log beside the loss.
    has_state: Whether there is state that is not trained, such as the statistics
      of BatchNorm: a pytree of float32 arrays. Then `init` returns (params,
      state), `loss(params, state, batch)` returns (loss, state) or (loss, state,
      metrics), and `evaluate` gets the state, too. All microbatches of a step get
      the state before the step; the mean of what they return replaces it.
    evaluate: `evaluate(params, batch)` returns metrics of held-out data, beside
      those of `loss`; see the option `config.evaluate.every_steps`.
    batch_keys: The arrays of the data source that `loss` reads.
    name: Names the model in checkpoints; a checkpoint of another name is
      rejected.
  """
  if isinstance(batch_keys, str) or not batch_keys:
    raise ValueError(f"batch_keys must be a tuple of names of arrays, got {batch_keys!r}.")
  takes_key = "key" in inspect.signature(loss).parameters
  layer = LossLayer(
      *(LAYER, init, loss, tuple(batch_keys), takes_key),
      has_aux=has_aux,
      has_state=has_state,
      evaluate=evaluate,
  )
  # It has the interface of a layer of `linen`.
  layers: Any = (layer,)
  return model_lib.Model(name, layers, {"name": name})


@dataclasses.dataclass(frozen=True)
class LossLayer:
  """A whole model as a layer; has the interface of `linen.LinenLayer`.

  Its parameters are a flat dict: the path of a leaf in the pytree that
  `init_all` returns is the name of the array. So are its statistics, the state.
  """

  name: str
  init_all: Callable[[jax.Array], base.PyTree]
  loss: Callable[..., Any]
  batch_keys: tuple[str, ...]
  takes_key: bool
  has_aux: bool
  has_state: bool
  evaluate: Callable[..., Mapping[str, Any]] | None
  ties: tuple[layer_lib.Tie, ...] = ()
  remat: str = "full"
  trained: str = ""
  trained_ties: tuple[layer_lib.Tie, ...] = ()

  @property
  def kind(self) -> Hashable:
    """Layers of equal kind compute the same function."""
    return self

  def init(self, key: jax.Array, inputs: None, batch: layer_lib.Batch) -> layer_lib.Variables:
    """Returns the initial parameters; they do not depend on `batch`.

    Raises `ValueError` if a leaf is not a float32 array, or is a variable of
    flax that is not trained.
    """
    params, state = self._split(self.init_all(key))
    _check_trained(params)
    parts = {"Parameter": layer_lib.name_leaves(params), "State": layer_lib.name_leaves(state)}
    if not parts["Parameter"]:
      raise ValueError(f"init of model {self.name!r} returned no parameters.")
    for kind, leaves in parts.items():
      for path, leaf in leaves.items():
        if getattr(leaf, "dtype", None) != np.float32:
          found = getattr(leaf, "dtype", type(leaf).__name__)
          raise ValueError(
              f"{kind} {path!r} must be a float32 array, got {found}. Keep "
              "untrained values out of the parameters, and cast in the loss."
          )
    return layer_lib.Variables(*jax.tree.map(jnp.asarray, tuple(parts.values())))

  def variable_shapes(self) -> layer_lib.Variables:
    """Returns the shapes of the variables; they do not depend on a batch."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(lambda key: self.init(key, None, {}), key)

  def to_pytree(self, variables: layer_lib.Variables) -> base.PyTree:
    """Returns the variables as `init_all` does."""
    trees = self._restore(variables.params, variables.stats)
    return trees if self.has_state else trees[0]

  def apply(
      self,
      params: base.PyTree,
      stats: base.PyTree,
      inputs: None,
      batch: layer_lib.Batch,
      *,
      key: jax.Array | None,
      train: bool,
  ) -> tuple[layer_lib.Loss, base.PyTree]:
    """Returns the loss of a microbatch, and the new state."""
    policy, key = (self.remat, key) if train else ("full", None)
    run = remat_lib.checkpoint_keyed(self._compute, policy, key)
    loss, new = run(params, stats, batch)
    if self.evaluate is not None and not train:
      found = self.evaluate(*self._restore(params, stats), dict(batch))
      more = _sum_metrics(found, loss.weight, what="evaluate")
      loss = loss.replace(metrics={**loss.metrics, **more})
    return loss, new

  @functools.cached_property
  def _shapes(self) -> tuple[base.PyTree, base.PyTree]:
    """Shapes of the pytrees of parameters and state."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    return self._split(jax.eval_shape(self.init_all, key))

  def _split(self, made: Any) -> tuple[base.PyTree, base.PyTree]:
    """Returns the parameters and the state, if any, that `init_all` has made."""
    if not self.has_state:
      return made, ()
    if not isinstance(made, tuple) or len(made) != 2:
      raise ValueError(
          f"init with has_state=True must return (params, state), got {_name_kind(made)}."
      )
    return made

  def _restore(self, *arrays: Mapping[str, Any]) -> tuple[base.PyTree, ...]:
    """Returns the pytrees of parameters and, if there is one, of the state."""
    trees = zip(self._shapes[: 1 + self.has_state], arrays, strict=False)
    return tuple(layer_lib.restore_leaves(part, shapes) for shapes, part in trees)

  def _compute(
      self, key: jax.Array | None, params: base.PyTree, stats: base.PyTree, batch: layer_lib.Batch
  ) -> tuple[layer_lib.Loss, base.PyTree]:
    given = {"key": key} if self.takes_key else {}
    found = self.loss(*self._restore(params, stats), dict(batch), **given)
    names = ["loss", *["state"] * self.has_state, *["metrics"] * self.has_aux]
    parts = found if len(names) > 1 else (found,)
    if not isinstance(parts, tuple) or len(parts) != len(names):
      raise ValueError(f"loss must return ({', '.join(names)}), got {_name_kind(parts)}.")
    told = dict(zip(names, parts, strict=True))
    loss = told["loss"]
    if not isinstance(loss, layer_lib.Loss):
      if not _is_scalar(loss) or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        hint = " For (loss, metrics) say from_loss(..., has_aux=True)." * isinstance(loss, tuple)
        raise ValueError(
            f"loss must return a scalar of floats or a layer.Loss, got {_name_kind(loss)}.{hint}"
        )
      weight = jnp.float32(len(next(iter(batch.values()))))
      loss = layer_lib.Loss(jnp.float32(loss) * weight, weight)
    for name in ("total", "weight"):
      if not _is_scalar(part := getattr(loss, name)):
        raise ValueError(f"{name} of a layer.Loss must be a scalar, got {_name_kind(part)}.")
    more = _sum_metrics(told.get("metrics", {}), loss.weight, what="loss")
    new = layer_lib.name_leaves(told["state"]) if self.has_state else stats
    for name in {**stats, **new}:
      was, now = (_name_kind(state.get(name)) for state in (stats, new))
      if was != now:
        raise ValueError(f"loss must return the arrays of the state: {name!r} was {was}, is {now}.")
    return loss.replace(metrics={**loss.metrics, **more}), new


def _sum_metrics(means: Any, weight: jax.Array, *, what: str) -> dict[str, jax.Array]:
  """Returns the sums of metrics of which the user's function `what` has returned means."""
  if not isinstance(means, Mapping):
    raise ValueError(f"The metrics of {what} must be a dict, got {_name_kind(means)}.")
  for name, mean in means.items():
    if not isinstance(name, str) or not _is_scalar(mean):
      raise ValueError(
          f"The metrics of {what} must be scalars by name, got {name!r}: {_name_kind(mean)}."
      )
  # The mean over no token may not be a number.
  add = lambda mean: jnp.where(weight > 0, jnp.float32(mean) * weight, 0)
  return {name: add(mean) for name, mean in means.items()}


def _is_scalar(value: Any) -> bool:
  return isinstance(value, (int, float, np.ndarray, np.generic, jax.Array)) and not jnp.shape(value)


def _name_kind(value: Any) -> str:
  """Returns the kind of a value that the user's function has returned."""
  if isinstance(value, (np.ndarray, jax.Array)):
    return f"an array {value.shape} of {value.dtype}"
  if isinstance(value, tuple):
    return f"a tuple of {len(value)}"
  return f"a {type(value).__name__}"


def _check_trained(tree: base.PyTree) -> None:
  """Raises `ValueError` for variables of flax that training must not change."""
  advice = (
      "It is not trained: say from_loss(..., has_state=True), with an init that "
      "returns (params, state), or normalize by LayerNorm or GroupNorm."
  )
  if isinstance(tree, Mapping) and "batch_stats" in tree:
    raise ValueError(f"init returned 'batch_stats', of BatchNorm. {advice}")
  nnx = sys.modules.get("flax.nnx")  # Slow to import if `init` does not.
  if nnx is None:
    return
  is_variable = lambda node: isinstance(node, nnx.Variable)
  paths = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_variable)
  for path, leaf in paths:
    if is_variable(leaf) and not isinstance(leaf, nnx.Param):
      kind = f"nnx.{type(leaf).__name__}"
      raise ValueError(
          f"Parameter {layer_lib.name_path(path)!r} is of {kind}, must be nnx.Param. {advice}"
      )
