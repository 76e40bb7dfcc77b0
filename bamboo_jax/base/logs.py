"""One format for the logs of agents, workers and the launcher.

2026-11-26 15:19:34.238 warning n1 step=38 peer.py:61 The connection was closed.

Times are UTC. The step is the last one that this process knows to be committed.
"""

import logging as std_logging
import time

from absl import logging

_step = 0


def use(node: str) -> None:
  """Makes this process, of `node`, log in this format.

  Messages of libraries below a warning are dropped.
  """
  handler = logging.get_absl_handler()
  handler.setFormatter(_Formatter(node))
  handler.addFilter(
      lambda r: r.name == "absl" or r.levelno >= std_logging.WARNING
  )


def note_step(step: int) -> None:
  """Records the number of committed steps."""
  global _step
  _step = step


def last_step() -> int:
  """Returns the number of the last `note_step`."""
  return _step


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
