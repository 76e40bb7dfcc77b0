"""Optimizers and learning-rate schedules of optax, by name.

An optimizer is applied to one layer at a time, so that its state can move with
the layer. A phase of the step, not the optimizer, clips the gradient by its
global norm.
"""

from collections.abc import Callable, Mapping
import inspect
from typing import Any

import jax
import numpy as np
import optax

from bamboo_jax import base

_ACROSS_LAYERS = ("clip_by_global_norm", "global_norm", "normalize_by_update")


def make_optimizer(
    name: str,
    *,
    learning_rate: float,
    options: Mapping[str, Any],
    schedule: str,
    schedule_options: Mapping[str, Any],
) -> optax.GradientTransformation:
  """Returns an optimizer of optax, which needs only gradients and parameters.

  Raises `ValueError` if a name or option is wrong, or it needs more than that.

  Args:
    name: Function of optax with an argument `learning_rate`, such as "adamw".
    learning_rate: Constant rate, or the peak of the schedule.
    options: Further arguments of that function; "weight_decay" is for any: one
      without it gets so much of each parameter as part of its gradient (L2).
    schedule: Function of optax that returns a schedule, or "constant".
    schedule_options: Its arguments; the peak is filled in.
  """
  rate = _make_schedule(schedule, learning_rate, schedule_options)
  optimizers = find_optimizers()
  if name not in optimizers:
    raise ValueError(base.suggest(name, optimizers, what="optimizer"))
  arguments = {"learning_rate": rate, **options}
  decay = None
  if "weight_decay" not in inspect.signature(optimizers[name]).parameters:
    decay = arguments.pop("weight_decay", None)
  optimizer = _call(optimizers[name], arguments, what=f"optimizer {name!r}")
  if decay is not None:
    optimizer = optax.chain(optax.add_decayed_weights(decay), optimizer)
  _check_update(optimizer, what=f"optimizer {name!r}")
  return optimizer


def find_optimizers() -> dict[str, Callable[..., Any]]:
  """Returns optimizers of optax by name; some need options, or too much."""
  return {
      name: function
      for name, function in inspect.getmembers(optax, inspect.isfunction)
      if not name.startswith(("_", "scale_by_"))
      and name not in _ACROSS_LAYERS
      and "learning_rate" in inspect.signature(function).parameters
  }


def _make_schedule(
    name: str, peak: float, options: Mapping[str, Any]
) -> float | optax.Schedule:
  if name == "constant":
    return peak
  schedules = {
      key: getattr(optax, key)
      for key in dir(optax)
      if key.endswith("_schedule") and key != "scale_by_schedule"
  }
  if name not in schedules:
    raise ValueError(
        base.suggest(name, [*schedules, "constant"], what="schedule")
    )
  parameters = inspect.signature(schedules[name]).parameters
  peak_name = "peak_value" if "peak_value" in parameters else "init_value"
  arguments = {**options, peak_name: peak}
  return _call(schedules[name], arguments, what=f"schedule {name!r}")


def _call(
    function: Callable[..., Any], arguments: Mapping[str, Any], *, what: str
) -> Any:
  """Returns `function(**arguments)`; an error names the bad argument."""
  base.check_options(function, arguments, what=what)
  try:
    return function(**arguments)
  except Exception as error:  # optax raises various types.
    raise ValueError(f"The {what} cannot be made: {error}") from error


def _check_update(
    optimizer: optax.GradientTransformation, *, what: str
) -> None:
  """Raises `ValueError` unless a layer can be updated; computes nothing."""
  params = {"w": jax.ShapeDtypeStruct((2, 2), np.float32)}
  try:
    slots = jax.eval_shape(optimizer.init, params)
    jax.eval_shape(optimizer.update, params, slots, params)
  except Exception as error:  # JAX and optax raise various types.
    raise ValueError(
        f"The {what} cannot be used with these options: {error}"
    ) from error
  for path, leaf in jax.tree_util.tree_leaves_with_path(slots):
    if not isinstance(leaf.dtype, np.dtype):
      where = jax.tree_util.keystr(path, simple=True, separator="/")
      raise ValueError(
          f"The {what} cannot be used: its state must be plain arrays, to be "
          f"copied and saved, but {where} is {leaf.dtype}."
      )
