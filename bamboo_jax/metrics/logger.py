"""Loggers of a run: `config.metrics.logger`, by name or "file.py:function"."""

from collections.abc import Mapping
import importlib.util
import numbers
import os
from typing import Any, Protocol

from bamboo_jax import base

# Names of those of the package, and the module that each needs.
BUILT_IN = {"csv": "csv", "tensorboard": "tensorboardX", "wandb": "wandb"}
_METHODS = ("log", "event", "close")


class Logger(Protocol):
  """Gets what `metrics.jsonl` gets, in the process that writes it.

  In a cluster this is the member that hosts the lowest training node. If it
  dies, the next one makes a logger of its own and continues.
  """

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Takes the metrics of a committed step, by name; steps count from 1.

    After a rollback to a checkpoint, steps are repeated.
    """

  def event(self, name: str, step: int, values: Mapping[str, Any]) -> None:
    """Takes an event, such as "recovery", "join" or "eval"."""

  def close(self) -> None:
    """Ends the log; nothing follows."""


def parse_names(text: str | None) -> list[str]:
  """Returns the names in `config.metrics.logger`, which has commas between.

  Raises `ValueError` for one that is unknown, `base.MissingExtraError` if its
  extra is not installed.
  """
  found = [name.strip() for name in (text or "").split(",") if name.strip()]
  for name in found:
    if base.is_function_name(name):
      base.find_function(name, what="logger")
    elif name not in BUILT_IN:
      raise ValueError(
          base.suggest(name, BUILT_IN, what="logger") + ' One of your own is "file.py:function".'
      )
    elif importlib.util.find_spec(BUILT_IN[name]) is None:
      raise base.MissingExtraError(
          f"config.metrics.logger={name!r} needs an extra: pip install " f"'bamboo_jax[{name}]'."
      )
  return found


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
  """Returns the numbers among `values`, also those one level down."""
  found: dict[str, float] = {}
  for name, value in values.items():
    if isinstance(value, Mapping):
      inner = numbers_of(value)
      found |= {f"{name}/{k}": v for k, v in inner.items()}
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
      found[name] = float(value)
  return found


def make_logger(name: str, config: Any, workdir: str | os.PathLike[str]) -> Logger:
  """Returns the logger of a user's function.

  Args:
    name: The function, as "file.py:function".
    config: The config of the run, its first argument.
    workdir: The folder of the run, its second argument.

  Raises:
    ValueError: There is no such function, or it does not return a `Logger`.
  """
  made = base.find_function(name, what="logger")(config, os.fspath(workdir))
  absent = [m for m in _METHODS if not callable(getattr(made, m, None))]
  if absent:
    raise ValueError(
        f"Logger {name!r} must have the methods {', '.join(_METHODS)}; "
        f"{type(made).__name__} lacks {', '.join(absent)}."
    )
  logger: Logger = made
  return logger
