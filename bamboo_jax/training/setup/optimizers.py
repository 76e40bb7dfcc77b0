"""Optimizers of optax and schedules of their learning rate, by name.

An optimizer is applied to one layer at a time, so that its state can move with
the layer. A phase of the step, not the optimizer, clips the gradient by its
global norm.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax import base, config as config_lib
from bamboo_jax.runtime import compat

_MASKS = ("mask", "weight_decay_mask")  # Names of optax for the argument.
CONSTANT = "constant"
_PEAKS = ("peak_value", "init_value", "value")  # Names of optax for the peak.
_OWN_PEAK = "learning_rate"
_LENGTHS = ("decay_steps", "transition_steps")
# The end of a long decay rounds to 0. No warning for rates above this fraction
# of the peak, nor for less than this fraction of all steps.
_ALMOST_ZERO, _SHORT = 1e-7, 1e-3


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
  if _OWN_PEAK in section.options:  # It would replace the schedule, unseen in the log.
    raise ValueError(
        f"config.optimizer.options.learning_rate={section.options[_OWN_PEAK]} is not allowed: "
        "set config.optimizer.learning_rate."
    )
  arguments = {_OWN_PEAK: rate, **section.options}
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
  if not all(callable(getattr(optimizer, k, None)) for k in ("init", "update")):
    raise ValueError(
        f"The {what} must be an optax.GradientTransformation, got " f"{type(optimizer).__name__}."
    )
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
  like = jax.ShapeDtypeStruct((2, 2), np.float32)
  params = {"first": like, "second": like}  # As if each were a layer.
  try:
    slots = jax.eval_shape(optimizer.init, params)
    update = jax.make_jaxpr(optimizer.update, return_shape=True)
    traced, (_, after) = update(params, slots, params)
  except Exception as error:  # JAX and optax raise various types.
    if missing := re.search(r"missing .*keyword-only argument.*", str(error)):
      raise ValueError(
          f"The {what} cannot be used: it needs more than gradients and "
          f"parameters, such as the loss ({missing[0]})."
      ) from error
    raise ValueError(f"The {what} cannot be used with these options: {error}") from error
  was, now = (
      {
          jax.tree_util.keystr(path, simple=True, separator="/"): leaf
          for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
      }
      for tree in (slots, after)
  )
  for where, leaf in was.items():
    if not isinstance(leaf.dtype, np.dtype):
      raise ValueError(
          f"The {what} cannot be used: its state must be plain arrays, to be "
          f"copied and saved, but {where} is {leaf.dtype}."
      )
  for where in {**was, **now}:  # Else its checkpoints could not be read.
    kinds = [f"{t[where].dtype}{[*t[where].shape]}" if where in t else "absent" for t in (was, now)]
    if kinds[0] != kinds[1]:
      raise ValueError(
          f"The {what} cannot be used: its update must return the arrays that its init does, but "
          f"{where} was {kinds[0]}, is {kinds[1]}."
      )
  # Without equations that only print.
  program = traced.jaxpr.replace(eqns=[one for one in traced.jaxpr.eqns if one.outvars])
  for result in program.outvars:
    _, used = compat.drop_unused(program, [one is result for one in program.outvars])
    if (used[0] or used[-2]) and (used[1] or used[-1]):  # Gradients or parameters.
      raise ValueError(
          f"The {what} cannot be used: its update of a parameter depends on "
          "others, and each layer is updated by itself. Instead of "
          "optax.clip_by_global_norm set config.optimizer.clip_norm, which is 1.0 "
          "by default and clips over all layers."
      )


@dataclasses.dataclass(frozen=True)
class LearningRateSchedule:
  """The learning rate of each step.

  Attributes:
    name: Function of optax, or "constant".
    peak: The option `learning_rate` of the config.
    rate: A number, or a function of the number of updates, as in optax.
    options: All arguments of the schedule except the peak.
    unused: Given options that belong to other schedules.
  """

  name: str
  peak: float
  rate: float | optax.Schedule = dataclasses.field(repr=False)
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  unused: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def rate_at(self, num_updates: int) -> float:
    """Returns the learning rate of the update after the first `num_updates`."""
    if isinstance(self.rate, (int, float)):
      return float(self.rate)
    return float(self._compute(np.int32(num_updates)))

  def find_warnings(self, num_steps: int) -> list[str]:
    """Returns warnings on likely mistakes in a run of `num_steps` steps."""
    found = []
    if self.unused:
      given = ", ".join(f"{k}={v}" for k, v in self.unused.items())
      found.append(
          "these options of config.optimizer.schedule_options are ignored, as "
          f"schedule {self.name!r} does not have them: {given}."
      )
    step = self._find_zeros(num_steps)
    warmup_steps = self.options.get("warmup_steps", 0)
    if step is not None:
      found.append(
          f"the learning rate is 0 from step {step} of "
          f"config.num_steps={num_steps} on: these steps change no parameter."
      )
    elif num_steps and warmup_steps >= num_steps:
      found.append(
          f"config.optimizer.schedule_options.warmup_steps={warmup_steps} is "
          f"not less than config.num_steps={num_steps}: the learning rate "
          "never reaches config.optimizer.learning_rate."
      )
    return found

  @functools.cached_property
  def _compute(self) -> Callable[[np.int32 | np.ndarray], jax.Array]:
    rate = self.rate
    assert callable(rate)
    return jax.jit(lambda count: jnp.asarray(rate(count), jnp.float32))

  def _find_zeros(self, num_steps: int) -> int | None:
    """Returns the first step, from 1, after which all rates are 0; or None."""
    least = _ALMOST_ZERO * self.peak
    if num_steps == 0 or not abs(self.rate_at(num_steps - 1)) <= least:  # Or NaN.
      return None
    if not callable(self.rate):
      return 1
    rates = jax.vmap(self._compute)(np.arange(num_steps, dtype=np.int32))
    (places,) = np.nonzero(~(np.abs(rates) <= least))
    last = int(places[-1]) + 1 if places.size else 0  # Last step with a rate.
    return last + 1 if num_steps - last > _SHORT * num_steps else None


def make_schedule(section: config_lib.OptimizerSection, *, num_steps: int) -> LearningRateSchedule:
  """Returns the schedule of a run of `num_steps` steps.

  Its name is a function of optax that returns a schedule, or "constant"; or the
  user's own, "file.py:function", see `base.find_function`, which gets the peak as
  `learning_rate`, if it has that argument. The peak is the largest rate, or the
  first one of a schedule that only falls. By default, and for None, lengths are
  such that the schedule ends with the run. Options of other schedules are ignored.

  Raises:
    ValueError: The name or an option is invalid.
  """
  name, peak, options = section.schedule, section.learning_rate, section.schedule_options
  schedules, is_own = find_schedules(), base.is_function_name(name)
  function: Callable[..., Any]
  known: list[str] = []
  if is_own:
    function = base.find_function(name, what="schedule")
    known = [*inspect.signature(function).parameters]
  elif name != CONSTANT and name not in schedules:
    raise ValueError(base.suggest(name, [*schedules, CONSTANT], what="schedule"))
  elif name != CONSTANT:
    function, known = getattr(optax, name), schedules[name]
  others = set[str]().union(*schedules.values())
  given = {k: v for k, v in options.items() if v is not None}
  unused = {k: given.pop(k) for k in list(given) if k in others - {*known}}
  if name == CONSTANT:
    if given:
      raise ValueError(f"The schedule {name!r} takes no options, got {', '.join(given)}.")
    return LearningRateSchedule(name, peak, peak, unused=unused)
  peaks = (_OWN_PEAK,) if is_own else _PEAKS
  peak_name = next((peak for peak in peaks if peak in known), None)
  if peak_name is not None:
    if peak_name in given:
      unused[peak_name] = given[peak_name]
    given[peak_name] = peak
  absent = [k for k in known if k in _LENGTHS and k not in given]
  lengths = dict.fromkeys(absent, 1)
  base.check_options(function, given | lengths, what=f"schedule {name!r}")
  for option in absent:
    given[option] = _find_length(option, known, given, num_steps)
  _check_lengths(given)
  try:
    rate = function(**given)
    shape = jax.eval_shape(lambda count: jnp.asarray(rate(count)), np.int32(0)).shape
  except Exception as error:  # optax raises various types, and users' code.
    raise ValueError(f"The schedule {name!r} cannot be made: {error}") from error
  if shape:
    raise ValueError(f"The schedule {name!r} must return a number, got an array {shape}.")
  if peak_name is not None:
    del given[peak_name]
  return LearningRateSchedule(name, peak, rate, given, unused)


def find_schedules() -> dict[str, list[str]]:
  """Returns the options of each schedule of optax that has a peak."""
  found = {
      name: [*inspect.signature(function).parameters]
      for name, function in inspect.getmembers(optax, inspect.isfunction)
      if name.endswith("_schedule") and name != "scale_by_schedule"
  }
  return {n: known for n, known in found.items() if {*_PEAKS} & {*known}}


def _find_length(option: str, known: list[str], given: Mapping[str, Any], num_steps: int) -> int:
  """Returns the length for which a schedule ends with the run.

  A decay includes the warmup, and a transition follows it. It is at least the
  shortest length that optax allows, in a run that is too short for it.
  """
  warmup_steps: int = given.get("warmup_steps", 0)
  if option == "decay_steps":
    return max(num_steps, warmup_steps + 1)
  before: int = given.get("transition_begin", 0)
  before += warmup_steps if "warmup_steps" in known else 0
  return max(num_steps - before, 1)


def _check_lengths(options: Mapping[str, Any]) -> None:
  """Raises `ValueError` for a schedule that would end before it begins."""
  where = "config.optimizer.schedule_options"
  for option in (*_LENGTHS, "warmup_steps", "transition_begin"):
    least = 1 if option in _LENGTHS else 0
    if option in options and options[option] < least:
      raise ValueError(f"{where}.{option} must be at least {least}, got {options[option]}.")
  warmup_steps = options.get("warmup_steps", 0)
  if options.get("decay_steps", warmup_steps + 1) <= warmup_steps:
    raise ValueError(
        f"{where}.decay_steps={options['decay_steps']} must be more than "
        f"{where}.warmup_steps={warmup_steps}, as it includes the steps of the "
        "warmup; None is config.num_steps."
    )
