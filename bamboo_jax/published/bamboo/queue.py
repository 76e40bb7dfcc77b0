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


class Event:
  """An entry of the queue, which compares time and kind and nothing else.

  The order of equal entries is up to `heapq`, as in the artifacts: it decides
  which nodes train together.

  Attributes:
    key: Eight times the time in ms, plus the kind.
    subject: Name of the node, the node itself, or the number of the timer.
  """

  __slots__ = ("key", "subject")

  def __init__(self, time_ms: int, kind: Kind, subject: Any) -> None:
    self.key = 8 * time_ms + kind
    self.subject = subject

  def __lt__(self, other: "Event") -> bool:
    return self.key < other.key

  @property
  def time_ms(self) -> int:
    """When it happens."""
    return self.key >> 3

  @property
  def kind(self) -> int:
    """What happens, a `Kind`."""
    return self.key & 7


def push_rows(queue: list[Event], rows: Sequence[Row]) -> None:
  """Adds what happens to nodes to a heap of events."""
  for time_ms, is_added, name in rows:
    kind = Kind.ADDITION if is_added else Kind.REMOVAL
    heapq.heappush(queue, Event(time_ms, kind, name))
