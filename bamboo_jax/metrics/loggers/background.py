"""Runs a logger in a thread, so that no step waits for it.

A logger that raises, or cannot be made, is dropped: training does not end for a
tool that shows it.
"""

from collections.abc import Callable, Mapping
import queue
import threading
from typing import Any

from bamboo_jax.base import threads
from bamboo_jax.metrics import logger as logger_lib

_CLOSE_SECS = 15.0  # For what is still to be sent at the end.


class Background:
  """A `logger.Logger` around another one, made by `make` in its thread.

  `make(step)` is called at the start and after each `rewind`. It removes what
  was logged after `step`, by an earlier process or before a rollback.
  """

  def __init__(
      self,
      name: str,
      make: Callable[[int], logger_lib.Logger],
      *,
      step: int,
      close_secs: float = _CLOSE_SECS,
  ) -> None:
    self._name, self._make, self._close_secs = name, make, close_secs
    self._calls: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    self._ended = threading.Event()
    self._errors: queue.SimpleQueue[str] = queue.SimpleQueue()
    threads.call_beside(self._run, step, name=f"logger {name}")

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """See `Logger`; does not block."""
    self._put("log", step, metrics)

  def event(self, name: str, step: int, values: Mapping[str, Any]) -> None:
    self._put("event", name, step, values)

  def rewind(self, step: int) -> None:
    """Voids the steps after `step`, which will be run again."""
    self._put("rewind", step)

  def close(self) -> None:
    """Ends the log; blocks for at most `close_secs`."""
    self._put("close")
    if not self._ended.wait(self._close_secs):
      self._drop(f"it has not ended in {self._close_secs:g} s")

  def take_error(self) -> str:
    """Returns why the logger was dropped, in a line; "" if there is no news."""
    return "" if self._errors.empty() else self._errors.get()

  def _put(self, *call: Any) -> None:
    if not self._ended.is_set():
      self._calls.put(call)

  def _drop(self, why: str) -> None:
    self._errors.put(f"No more lines for logger {self._name}: {why.rstrip('.')}")

  def _run(self, step: int) -> None:
    try:
      try:
        logger = self._make(step)
      except SystemError:
        # CPython 3.11 may raise it if two threads parse Python code at once, as
        # imports of W&B and JAX do ("AST constructor recursion depth").
        logger = self._make(step)
      while (call := self._calls.get())[0] != "close":
        if call[0] == "rewind":
          logger.close()
          logger = self._make(call[1])
        else:
          getattr(logger, call[0])(*call[1:])
      logger.close()
    except (Exception, SystemExit) as error:  # Anything a tool may raise.
      self._drop(" ".join(str(error).split()) or type(error).__name__)
    finally:
      self._ended.set()
