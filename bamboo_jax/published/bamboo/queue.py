"""The queue of events of the artifacts' simulators; see `loop`."""

from collections.abc import Sequence
import enum
import heapq
from typing import Any

Row = tuple[int, bool, str]  # Time in ms, whether a node is added, its name.


class Kind(enum.IntEnum):
  """What happens; at the same time the lower comes first."""

  ADDITION = 0
  REMOVAL = 1
  MORE_ROWS = 2
  READY = 3
  GLOBAL_TIMER = 4
  LOCAL_TIMER = 5
  STEP_END = 6
  CHECKPOINT_END = 7


class Event(int):
  """An entry of the queue, which compares time and kind and nothing else.

  It is eight times the time in ms, plus the kind. The order of equal entries is
  up to `heapq`, as in the artifacts: it decides which nodes train together.

  Attributes:
    subject: Name of the node, the node itself, or the number of the timer.
  """

  subject: Any


def push_rows(queue: list[Event], rows: Sequence[Row]) -> None:
  """Adds what happens to nodes to a heap of events."""
  for time_ms, is_added, name in rows:
    event = Event(8 * time_ms + (not is_added))  # `Kind`s 0 and 1.
    event.subject = name
    heapq.heappush(queue, event)
