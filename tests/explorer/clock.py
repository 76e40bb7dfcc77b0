"""Virtual time: jumps from one happening to the next."""

import asyncio
from collections.abc import Callable, Iterable
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


class VirtualLoop(asyncio.BaseEventLoop):
  """A loop in which time passes only as `now` says."""

  def __init__(self, now: Callable[[], float]) -> None:
    super().__init__()
    self._selector, self.time = self, now
    self._failures: list[BaseException] = []
    # Tasks of processes that are killed have no exception.
    self.set_exception_handler(
        lambda loop, context: self._failures.extend(filter(None, [context.get("exception")]))
    )

  def __del__(self) -> None:
    """Closes nothing: its tasks end with it."""

  def _write_to_self(self) -> None:
    """It never sleeps."""

  def select(self, timeout: float | None) -> Iterable[Any]:
    return ()

  def _process_events(self, events: Iterable[Any]) -> None:
    """There are none."""

  def run_due(self) -> float | None:
    """Runs what is due by now; returns when something is next."""
    while True:
      self.call_soon(self.stop)
      self.run_forever()
      if self._failures:
        raise self._failures.pop()
      if not self._ready:
        return self._scheduled[0].when() if self._scheduled else None

  def run_without_timers(self) -> None:
    """Runs what has come, though something else may be due."""
    due, self._scheduled = self._scheduled, []
    self.run_due()
    for timer in self._scheduled:
      heapq.heappush(due, timer)
    self._scheduled = due
