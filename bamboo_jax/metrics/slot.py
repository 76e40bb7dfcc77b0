"""A named interval of time, the common input of traces and charts."""

from collections.abc import Iterable
import dataclasses
import math
import re

DEATH = "death"  # Category of the moment at which the node of a track dies.


@dataclasses.dataclass(frozen=True, slots=True)
class TrackSlot:
  """One interval of a track, such as a node "n3", in ms after the step's start.

  `category`, such as "forward", selects the colour; `meaning` explains the name
  in the legend, which has one slot of each form ("0F1" and "2F3" have one
  form).
  """

  track: str
  name: str
  start_ms: float
  end_ms: float
  category: str = "other"
  meaning: str = ""

  def __post_init__(self) -> None:
    if not -math.inf < self.start_ms <= self.end_ms < math.inf:
      raise ValueError(
          f"Slot {self.name!r} of {self.track!r} must have finite times and "
          f"start before it ends, got start_ms={self.start_ms}, "
          f"end_ms={self.end_ms}."
      )


def tracks(slots: Iterable[TrackSlot]) -> tuple[str, ...]:
  """Returns the distinct tracks, in natural order: 2 before 10."""
  return tuple(sorted({s.track for s in slots}, key=_natural_key))


def _natural_key(name: str) -> list[tuple[int, int, str]]:
  words = filter(None, re.split(r"(\d+)", name))
  return [(0, int(w), "") if w.isdecimal() else (1, 0, w) for w in words]
