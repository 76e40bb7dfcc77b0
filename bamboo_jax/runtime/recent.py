"""Programs that were used last, by key; others make way for them.

XLA:CPU takes about three mappings of memory for each kernel of a program, and
Linux ends a process that has 65,530. So a run whose layout changes again and
again must forget programs of old layouts; to load one anew takes milliseconds.
"""

import collections
from collections.abc import Callable, Hashable
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
  """At most `limit` values; may be used by any thread."""

  def __init__(self, limit: int) -> None:
    self._limit = limit
    self._values: collections.OrderedDict[Hashable, T] = (
        collections.OrderedDict()
    )
    self._lock = threading.Lock()

  def get(
      self,
      key: Hashable,
      make: Callable[[], T],
      *,
      fits: Callable[[T], bool] = lambda _: True,
  ) -> T:
    """Returns the value of a key; makes it if there is none that fits.

    Two threads may make it at once; they get the same.
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
    """Drops all."""
    with self._lock:
      self._values.clear()
