"""Watches the other agents, and the agent's own worker: when silence counts as a death; pure.

Exits and refused connections are detected at once; silence detects nodes that
are suspended or cut off. On a busy machine healthy nodes are silent for a while
too, so the limit follows the gaps observed recently.

The worker runs on the same machine, so the cause of its silence is known: for a
stopped process the shortest limit holds, for one that waits for a processor,
which may take seconds under load, the longest.
"""

import collections
import math

from bamboo_jax import config as config_lib
from bamboo_jax.cluster import messages

_AWAY_BEATS = 5  # After as many missed beats this agent was suspended itself.
_QUIET = 4.0  # Quiet: silent for this part of the limit.
_MOST_BEATS = 2  # Beats that count between two looks.


class Silence:
  """Watches the heartbeats of one node.

  The limit is `factor` times the longest recent gap, but at least `least_secs`
  and at most `most_secs`.

  Attributes:
    heard_secs: When it was last heard, if ever, by a clock that excuses nothing.
    has_ended: Whether that was the last word of its worker; its agent may live on.
  """

  def __init__(
      self, now: float, *, least_secs: float, factor: float, most_secs: float = math.inf
  ) -> None:
    self._last, self._factor = now, factor
    self.heard_secs: float | None = None
    self.has_ended = False
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
    secs = self.secs(now)
    return secs > self._least_secs and secs > self.limit_secs  # The limit takes a while to find.


class HeartbeatWatch:
  """Records heartbeats, and finds agents that are silent for too long."""

  def __init__(self, limits: config_lib.ClusterSection) -> None:
    self._limits = limits
    self._agents: dict[str, Silence] = {}
    self._awake_secs = 0.0  # Time up to the last look, without suspensions.
    self._ticked_secs = 0.0
    self._progress = -1
    self._is_waiting = True
    self.begin(0.0)

  def begin(self, now: float, *, is_ready: bool = False) -> None:
    """Watches a worker that was just started, or has compiled its programs."""
    limits = self._limits
    self._heard_secs = self._worker_secs = now
    self._is_ready = is_ready
    self._patience_secs = limits.most_silence_secs if is_ready else limits.start_silence_secs
    self._work = Silence(now, least_secs=limits.no_progress_secs, factor=limits.silence_factor)

  def note_worker(self, now: float) -> None:
    self._heard_secs = self._worker_secs = now

  def note_busy(self, now: float) -> None:
    """Records that the worker computes, as it does while it imports.

    A worker that is ready has a thread that sends heartbeats.
    """
    if not self._is_ready:
      self._heard_secs = now

  def worker_silent_secs(self, now: float) -> float:
    return now - self._worker_secs

  def note_progress(self, beat: messages.Beat, now: float) -> None:
    """Records how much the worker has done."""
    if beat.progress != self._progress:
      self._work.beat(now)
    elif beat.is_waiting or self._is_waiting:
      self._work.excuse(now)
    self._progress, self._is_waiting = beat.progress, beat.is_waiting

  def excuse_work(self, now: float) -> None:
    """Forgets that the worker has made no progress up to now."""
    self._work.excuse(now)

  def add(self, incarnation: str, now: float) -> None:
    """Starts watching an agent, unless it is watched."""
    if incarnation not in self._agents:
      self._agents[incarnation] = Silence(
          self.awake(now),
          least_secs=self._limits.least_silence_secs,
          factor=self._limits.silence_factor,
          most_secs=self._limits.most_silence_secs,
      )

  def drop(self, incarnation: str) -> None:
    """Stops watching an agent."""
    self._agents.pop(incarnation, None)

  def note(self, incarnation: str, now: float) -> bool:
    """Records a heartbeat of an agent; returns whether it was overdue."""
    if (silence := self._agents.get(incarnation)) is None:
      return False
    awake_secs = self.awake(now)
    was_quiet = self._is_quiet(silence, awake_secs)
    if silence.heard_secs is not None:
      silence.beat(awake_secs)
    else:  # The time until an agent connects is no gap.
      silence.excuse(awake_secs)
    if not silence.has_ended:
      silence.heard_secs = now
    return was_quiet

  def note_end(self, incarnation: str, now: float, silent_secs: float) -> None:
    """Records the end of an agent's worker, and since when it was silent."""
    if (silence := self._agents.get(incarnation)) is not None:
      silence.heard_secs, silence.has_ended = now - silent_secs, True

  def silent_secs(self, incarnation: str, now: float) -> float | None:
    """Returns for how long a node was silent; None if it was never heard.

    If the agent has outlived its worker, the worker counts. Includes excused
    silence.
    """
    silence = self._agents.get(incarnation)
    return None if silence is None or silence.heard_secs is None else now - silence.heard_secs

  def excuse(self, incarnation: str, now: float) -> None:
    """Forgets the silence of an agent up to now."""
    if (silence := self._agents.get(incarnation)) is not None:
      silence.excuse(self.awake(now))

  def was_away(self, now: float) -> bool:
    """Whether this agent was suspended until now, so its `tick` is overdue."""
    return now - self._ticked_secs > _AWAY_BEATS * self._limits.heartbeat_secs

  def tick(self, now: float) -> None:
    """Records that this agent is running at `now`; call at every heartbeat.

    Most of the time for which it was suspended does not count as silence.
    """
    if self.was_away(now):
      self._heard_secs = now
      self._work.excuse(now)
    self._awake_secs, self._ticked_secs = self.awake(now), now

  def awake(self, now: float) -> float:
    """Returns the time, on a clock that stops while this agent is suspended."""
    most_secs = _MOST_BEATS * self._limits.heartbeat_secs
    return self._awake_secs + min(now - self._ticked_secs, most_secs)

  def find_fault(self, now: float, *, is_stopped: bool) -> str:
    """Returns why the worker counts as dead; "" if it does not."""
    silent_secs = now - self._heard_secs
    if silent_secs > self._patience_secs:
      return f"its worker was silent for {self._patience_secs:.1f} s"
    if silent_secs > self._limits.stopped_secs and is_stopped:
      return f"its worker was stopped for {self._limits.stopped_secs:.1f} s"
    if self._is_ready and self._work.is_over(now):
      return f"its worker made no progress for {self._work.limit_secs:.0f} s, and waited for nobody"
    return ""

  def find_silent(self, now: float) -> dict[str, str]:
    """Returns the agents that are silent for too long, with reasons."""
    now = self.awake(now)
    return {
        incarnation: f"its agent was silent for {silence.limit_secs:.1f} s"
        for incarnation, silence in self._agents.items()
        if silence.is_over(now)
    }

  def find_quiet(self, now: float) -> list[str]:
    """Returns agents with overdue heartbeats, not yet silent for too long."""
    now = self.awake(now)
    return [i for i, silence in self._agents.items() if self._is_quiet(silence, now)]

  def _is_quiet(self, silence: Silence, awake_secs: float) -> bool:
    return silence.secs(awake_secs) > self._limits.least_silence_secs / _QUIET
