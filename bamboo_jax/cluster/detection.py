"""When silence counts as a death.

Exits and refused connections are detected at once; silence detects nodes that
are suspended or cut off. On a busy machine healthy nodes are silent for a while
too, so the limit follows the gaps observed recently.
"""

import collections
import math


class Silence:
  """Watches the heartbeats of one node.

  The limit is `factor` times the longest recent gap, but at least `least_secs`
  and at most `most_secs`.
  """

  def __init__(
      self, now: float, *, least_secs: float, factor: float, most_secs: float = math.inf
  ) -> None:
    self._last, self._factor = now, factor
    self._least_secs, self._most_secs = least_secs, most_secs
    self._gaps: collections.deque[float] = collections.deque(maxlen=256)

  @property
  def limit_secs(self) -> float:
    """Length of a silence after which the node counts as dead."""
    wanted = self._factor * self.longest_secs
    return min(self._most_secs, max(self._least_secs, wanted))

  def beat(self, now: float) -> None:
    self._gaps.append(now - self._last)
    self._last = now

  @property
  def longest_secs(self) -> float:
    """Longest recent gap, 0 if there was none."""
    return max(self._gaps, default=0.0)

  def excuse(self, now: float, *, least_gap_secs: float = 0.0) -> None:
    """Forgets the silence up to now, since others were silent as well."""
    self._last = now
    if least_gap_secs > self.longest_secs:
      self._gaps.append(least_gap_secs)

  def secs(self, now: float) -> float:
    return now - self._last

  def is_over(self, now: float) -> bool:
    """Returns whether the node has been silent for too long."""
    return self.secs(now) > self.limit_secs
