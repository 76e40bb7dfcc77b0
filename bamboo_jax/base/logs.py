"""One format for the logs of agents, workers and the launcher.

2026-11-26 15:19:34.238 warning n1 step=38 peer.py:61 The connection was closed.

Times are UTC. The step is the last one that this process knows to be committed.
"""

from collections.abc import Callable, Mapping
import logging as std_logging
import threading
import time

from absl import logging

_step = 0
_names: dict[int, str] = {}  # Of nodes, by number.


def use(node: str) -> None:
  """Makes this process, of `node`, log in this format.

  Messages of libraries below a warning are dropped.
  """
  handler = logging.get_absl_handler()
  handler.setFormatter(_Formatter(node))
  handler.addFilter(lambda r: r.name == "absl" or r.levelno >= std_logging.WARNING)


def note_step(step: int) -> None:
  """Records the number of committed steps."""
  global _step
  _step = step


def last_step() -> int:
  return _step


def note_names(names: Mapping[int, str]) -> None:
  """Records names of nodes, by number; a number is never used again."""
  _names.update(names)


def name_of(node: int) -> str:
  """Returns the name of a node, for messages."""
  return _names.get(node, f"node {node}")


class Sparing:
  """Warns of what strangers can cause at will, so that they fill no disk.

  After the first lines there is one for each `every_secs`, with the number of
  those that are missing; thread-safe.
  """

  def __init__(
      self,
      *,
      num_first: int = 10,
      every_secs: float = 10.0,
      clock: Callable[[], float] = time.monotonic,
  ) -> None:
    self._num_free, self._every_secs = num_first, every_secs
    self._clock, self._next_secs = clock, 0.0
    self._num_missing = 0
    self._lock = threading.Lock()

  @logging.skip_log_prefix
  def warn(self, text: str, *values: object) -> None:
    """Logs a warning, or counts it as missing."""
    with self._lock:
      now = self._clock()
      if not self._num_free and now < self._next_secs:
        self._num_missing += 1
        return
      self._num_free = max(0, self._num_free - 1)
      self._next_secs = now + self._every_secs
      if self._num_missing:
        text, values = text + " (%d such lines before)", (*values, self._num_missing)
        self._num_missing = 0
    logging.warning(text, *values)


class _Formatter(std_logging.Formatter):

  def __init__(self, node: str) -> None:
    super().__init__()
    self._node = node

  def format(self, record: std_logging.LogRecord) -> str:
    """Returns the line, and a traceback if there is one."""
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.created))
    return (
        f"{now}.{int(record.msecs):03d} {record.levelname.lower()} "
        f"{self._node} step={_step} {record.filename}:{record.lineno} "
        f"{super().format(record)}"
    )
