"""Optimizers of optax, by name.

An optimizer is applied to one layer at a time, so that its state can move with
the layer. A phase of the step, not the optimizer, clips the gradient by its
global norm.
"""

from collections.abc import Callable, Sequence
import inspect
import re
from typing import Any

import jax
from jax.extend import core
import numpy as np
import optax

from bamboo_jax import base, config as config_lib

_MASKS = ("mask", "weight_decay_mask")  # Names of optax for the argument.


def make_optimizer(
    section: config_lib.OptimizerSection, rate: float | optax.Schedule
) -> optax.GradientTransformation:
  """Returns an optimizer of optax that updates each layer by itself.

  Its name is a function of optax with an argument `learning_rate`, such as
  "adamw"; or the user's own, "file.py:function", see `base.find_function`. The
  option "weight_decay" is allowed for all: an optimizer without it gets an L2 term
  in its gradient. Only "matrices" means parameters of two dimensions or more,
  embeddings included.

  Raises:
    ValueError: A name or option is invalid, or the optimizer needs more than a
      layer's gradients and parameters.
  """
  name, what = section.name, f"optimizer {section.name!r}"
  if base.is_function_name(name):
    function = base.find_function(name, what="optimizer")
  elif (found := find_optimizers().get(name)) is None:
    raise ValueError(base.suggest(name, find_optimizers(), what="optimizer"))
  else:
    function = found
  arguments = {"learning_rate": rate, **section.options}
  known = inspect.signature(function).parameters
  matrices = lambda params: jax.tree.map(lambda param: param.ndim >= 2, params)
  mask = None if section.decay == "all" else matrices
  decay_rate = None
  if "weight_decay" not in known:
    decay_rate = arguments.pop("weight_decay", None)
  if mask and (masks := [option for option in _MASKS if option in known]):
    arguments.setdefault(masks[0], mask)
  elif mask and "weight_decay" in known:
    raise ValueError(
        f"config.optimizer.decay='matrices' cannot be used with the {what}, which decays all "
        f"parameters; got weight_decay={arguments.get('weight_decay')}."
    )
  base.check_options(function, arguments, what=what)
  try:
    optimizer = function(**arguments)
  except Exception as error:  # optax raises various types.
    raise ValueError(f"The {what} cannot be made: {error}") from error
  if decay_rate is not None:
    optimizer = optax.chain(optax.add_decayed_weights(decay_rate, mask), optimizer)
  _check_update(optimizer, what=what)
  return optimizer


def find_optimizers() -> dict[str, Callable[..., Any]]:
  """Returns the functions of optax with a learning rate, by name.

  `make_optimizer` rejects some of them.
  """
  return {
      name: function
      for name, function in inspect.getmembers(optax, inspect.isfunction)
      if not name.startswith(("_", "scale_by_"))
      and "learning_rate" in inspect.signature(function).parameters
  }


def _check_update(optimizer: optax.GradientTransformation, *, what: str) -> None:
  """Raises `ValueError` unless a layer can be updated; computes nothing."""
  if not all(callable(getattr(optimizer, k, None)) for k in ("init", "update")):
    raise ValueError(
        f"The {what} must be an optax.GradientTransformation, got " f"{type(optimizer).__name__}."
    )
  like = jax.ShapeDtypeStruct((2, 2), np.float32)
  params = {"first": like, "second": like}  # As if each were a layer.
  try:
    slots = jax.eval_shape(optimizer.init, params)
    traced = jax.make_jaxpr(optimizer.update)(params, slots, params)
  except Exception as error:  # JAX and optax raise various types.
    if missing := re.search(r"missing .*keyword-only argument.*", str(error)):
      raise ValueError(
          f"The {what} cannot be used: it needs more than gradients and "
          f"parameters, such as the loss ({missing[0]})."
      ) from error
    raise ValueError(f"The {what} cannot be used with these options: {error}") from error
  for path, leaf in jax.tree_util.tree_leaves_with_path(slots):
    if not isinstance(leaf.dtype, np.dtype):
      where = jax.tree_util.keystr(path, simple=True, separator="/")
      raise ValueError(
          f"The {what} cannot be used: its state must be plain arrays, to be "
          f"copied and saved, but {where} is {leaf.dtype}."
      )
  no_layer: frozenset[int] = frozenset()
  layers = [frozenset({0}), frozenset({1})]
  sources = [*layers, *[no_layer] * len(jax.tree.leaves(slots)), *layers]
  if any(len(found) > 1 for found in _follow(traced.jaxpr, sources)):
    raise ValueError(
        f"The {what} cannot be used: its update of a parameter depends on "
        "others, and each layer is updated by itself. Instead of "
        "optax.clip_by_global_norm set config.optimizer.clip_norm, which is 1.0 "
        "by default and clips over all layers."
    )


def _follow(jaxpr: core.Jaxpr, sources: Sequence[frozenset[int]]) -> list[frozenset[int]]:
  """Returns the sources of each result of a program.

  `sources` are the sets of layers that its arguments depend on.
  """
  known = dict(zip(jaxpr.invars, sources, strict=True))
  find = lambda atom: (
      frozenset() if isinstance(atom, core.Literal) else known.get(atom, frozenset())
  )
  for equation in jaxpr.eqns:
    found = [*map(find, equation.invars)]
    if equation.primitive.name == "jit":
      found = _follow(equation.params["jaxpr"].jaxpr, found)
    elif equation.primitive.name == "cond":
      choice, *rest = found
      ways = [_follow(b.jaxpr, rest) for b in equation.params["branches"]]
      found = [choice.union(*way) for way in zip(*ways, strict=True)]
    else:
      found = [frozenset().union(*found)] * len(equation.outvars)
    known |= zip(equation.outvars, found, strict=True)
  return [*map(find, jaxpr.outvars)]
