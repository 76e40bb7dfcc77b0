"""When silence is long enough to be taken for a death.

Exits and closed connections are seen at once. What is left are nodes that say
nothing: stopped, frozen, or cut off. On a crowded machine a healthy node is
silent for a while too, so the limit follows the gaps that have been seen.
"""

import collections


class Silence:
  """Watches the heartbeats of one node.

  Args:
    now: Time at which it was last heard of, in seconds.
    least_secs: The limit is never below.
    factor: The limit is this times the longest recent gap.
    most_secs: The limit is never above.
  """

  def __init__(
      self,
      now: float,
      *,
      least_secs: float = 1.5,
      factor: float = 4.0,
      most_secs: float = 10.0,
  ) -> None:
    self._last = now
    self._least_secs = least_secs
    self._factor = factor
    self._most_secs = most_secs
    self._gaps: collections.deque[float] = collections.deque(maxlen=256)

  @property
  def limit_secs(self) -> float:
    """A longer silence is taken for a death."""
    longest = max(self._gaps, default=0.0)
    wanted = max(self._least_secs, self._factor * longest)
    return min(self._most_secs, wanted)

  def beat(self, now: float) -> None:
    """Notes that the node was heard of."""
    self._gaps.append(now - self._last)
    self._last = now

  def excuse(self, now: float) -> None:
    """Forgets the silence up to now: the watcher itself was away."""
    self._last = now

  def is_over(self, now: float) -> bool:
    """Returns whether the node has been silent for too long."""
    return now - self._last > self.limit_secs
