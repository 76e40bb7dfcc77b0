"""When silence counts as a death.

Exits and refused connections are detected at once; silence detects nodes that
are suspended or cut off. On a busy machine healthy nodes are silent for a while
too, so the limit follows the gaps observed recently.
"""

import collections
import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class DetectionLimits:
  """Limits in seconds, checked; see `config.cluster`.

  Attributes:
    stopped_secs: Limit for a worker that is stopped.
    least_silence_secs: Lower bound of the limit for an agent.
    most_silence_secs: Limit for a worker, and upper bound for an agent.
    silence_factor: Limit for an agent within these bounds, as a multiple of its
      longest recent gap.
    start_silence_secs: Limit for a worker that imports and compiles.
    no_progress_secs: Limit for a worker that is alive without progress, or
      `silence_factor` times its longest recent gap if that is more.
    gather_secs: After this wait for missing nodes a run starts without them.
    num_watchers: Number of agents that receive the heartbeats of each; once one
      is suspected, all do.
  """

  heartbeat_secs: float = 0.1
  stopped_secs: float = 1.0
  least_silence_secs: float = 3.0
  most_silence_secs: float = 10.0
  silence_factor: float = 4.0
  start_silence_secs: float = 60.0
  no_progress_secs: float = 60.0
  gather_secs: float = 300.0
  num_watchers: int = 8

  def __post_init__(self) -> None:
    for name, value in vars(self).items():
      if not 0 < value < math.inf:
        raise ValueError(f"config.cluster.{name} must be positive, got {value}.")
    twice = f"twice heartbeat_secs={self.heartbeat_secs}"
    silence = f"least_silence_secs={self.least_silence_secs}"
    for name, least, text in (
        ("silence_factor", 1, "1"),
        ("stopped_secs", 2 * self.heartbeat_secs, twice),
        ("least_silence_secs", 2 * self.heartbeat_secs, twice),
        ("most_silence_secs", self.least_silence_secs, silence),
    ):
      if (value := getattr(self, name)) < least:
        raise ValueError(f"config.cluster.{name} must be at least {text}, got {value}.")


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
