"""Virtual time: jumps from one happening to the next."""

from collections.abc import Callable
import heapq
import itertools
from typing import Any


class SimulatedClock:
  """What is to happen, in order; `now` in seconds."""

  def __init__(self) -> None:
    self.now = 0.0
    self.count = 0
    self._due: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
    self._order = itertools.count()

  def at(self, secs: float, call: Callable[..., Any], *args: Any) -> None:
    """Has something happen `secs` from now; what is due at once in order."""
    due = (self.now + secs, next(self._order), call, args)
    heapq.heappush(self._due, due)

  def run(self, until_secs: float) -> None:
    """Lets time pass up to an instant."""
    while self._due and self._due[0][0] <= until_secs:
      self.now, _, call, args = heapq.heappop(self._due)
      self.count += 1
      call(*args)
    self.now = max(self.now, until_secs)
