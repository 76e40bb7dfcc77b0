"""A logger of the user's own: `config.metrics.logger`, "file.py:function"."""

from collections.abc import Mapping
import os
from typing import Any, Protocol

from bamboo_jax import base

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


def make_logger(
    name: str, config: Any, workdir: str | os.PathLike[str]
) -> Logger:
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
  return made
