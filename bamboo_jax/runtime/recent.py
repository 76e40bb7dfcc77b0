"""A cache of programs that evicts the least recently used.

XLA:CPU takes about three memory mappings for each kernel of a program, and
Linux kills a process at 65,530. So a run whose layout changes often must drop
programs of old layouts; loading one again takes milliseconds.
"""

import collections
from collections.abc import Callable, Hashable
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
  """A cache of at most `limit` values; thread-safe."""

  def __init__(self, limit: int) -> None:
    self._limit = limit
    self._values: collections.OrderedDict[Hashable, T] = collections.OrderedDict()
    self._lock = threading.Lock()

  def get(
      self, key: Hashable, make: Callable[[], T], *, fits: Callable[[T], bool] = lambda _: True
  ) -> T:
    """Returns the value of `key`; calls `make` if no fitting one is cached.

    If two threads make it at once, both get the same value.
    """
    with self._lock:
      if key in self._values and fits(self._values[key]):
        self._values.move_to_end(key)
        return self._values[key]
    made = make()
    with self._lock:
      if key not in self._values or not fits(self._values[key]):
        self._values[key] = made
      self._values.move_to_end(key)
      if len(self._values) > self._limit:
        self._values.popitem(last=False)
      return self._values[key]

  def clear(self) -> None:
    """Drops all values."""
    with self._lock:
      self._values.clear()
