"""Watches the other agents, and the agent's own worker.

The worker runs on the same machine, so the cause of its silence is known: for a
stopped process the shortest limit holds, for one that waits for a processor,
which may take seconds under load, the longest.
"""

from collections.abc import Collection

from bamboo_jax import config as config_lib
from bamboo_jax.cluster import detection, messages, stalls as stalls_lib, views

_AWAY_BEATS = 5  # After as many missed beats this agent was suspended itself.
_QUIET = 4.0  # Quiet: silent for this part of the limit.
_MOST_BEATS = 2  # Beats that count between two looks.


class HeartbeatWatch:
  """Records heartbeats, and finds agents that are silent for too long."""

  def __init__(self, limits: config_lib.ClusterSection) -> None:
    self._limits = limits
    self._agents: dict[str, detection.Silence] = {}
    self._heard: dict[str, float] = {}  # Last heartbeats, if any.
    self._ended: dict[str, float] = {}  # The last ones of ended workers.
    self._expected: Collection[str] | None = None  # None for all.
    self._unheard: set[str] = set()  # Expected only since recently.
    self._stalls: dict[str, stalls_lib.Stall] = {}
    self._stall: stalls_lib.Stall | None = None
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
    self._work = detection.Silence(
        now, least_secs=limits.no_progress_secs, factor=limits.silence_factor
    )

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

  def note_progress(self, beat: messages.WorkerBeat, now: float) -> None:
    """Records how much the worker has done."""
    if beat.progress != self._progress:
      self._work.beat(now)
    elif beat.is_waiting or self._is_waiting:
      self._work.excuse(now)
    self._progress, self._is_waiting = beat.progress, beat.is_waiting
    self._stall = beat.stall

  def excuse_work(self, now: float) -> None:
    """Forgets that the worker has made no progress up to now."""
    self._work.excuse(now)

  def note_view(self, now: float) -> None:
    """Records a new view, in which all can continue; forgets stalls."""
    self._work.excuse(now)
    self._stalls.clear()
    self._stall = None

  def add(self, incarnation: str, now: float) -> None:
    """Starts watching an agent, unless it is watched."""
    if incarnation not in self._agents:
      self._agents[incarnation] = detection.Silence(
          self.awake(now),
          least_secs=self._limits.least_silence_secs,
          factor=self._limits.silence_factor,
          most_secs=self._limits.most_silence_secs,
      )

  def drop(self, incarnation: str) -> None:
    """Stops watching an agent."""
    for table in (self._agents, self._heard, self._ended):
      table.pop(incarnation, None)
    self._unheard.discard(incarnation)
    self._stalls.pop(incarnation, None)

  def expect(self, incarnations: Collection[str] | None, now: float) -> None:
    """Sets the agents that send heartbeats from now on; None for all."""
    now, former = self.awake(now), self._due()
    if incarnations != self._expected:
      self._expected = incarnations
      gaps = [s.longest_secs for s in former.values()]
      for incarnation, silence in self._due().items():
        if incarnation not in former:
          silence.excuse(now, least_gap_secs=max(gaps, default=0.0))
          self._unheard.add(incarnation)

  def _due(self) -> dict[str, detection.Silence]:
    return {i: s for i, s in self._agents.items() if self._is_due(i)}

  def _is_due(self, incarnation: str) -> bool:
    return self._expected is None or incarnation in self._expected

  def note(self, incarnation: str, now: float) -> None:
    """Records a heartbeat of an agent."""
    if (silence := self._agents.get(incarnation)) is None:
      return
    self._heard[incarnation] = now
    self._unheard.discard(incarnation)
    if self._is_due(incarnation):
      silence.beat(self.awake(now))
    else:
      silence.excuse(self.awake(now))

  def note_end(self, incarnation: str, now: float, silent_secs: float) -> None:
    """Records the end of an agent's worker, and since when it was silent."""
    if incarnation in self._agents:
      self._ended[incarnation] = now - silent_secs

  def silent_secs(self, incarnation: str, now: float) -> float | None:
    """Returns for how long a node was silent; None if it was never heard.

    If the agent has outlived its worker, the worker counts. Includes excused
    silence.
    """
    heard_secs = self._ended.get(incarnation, self._heard.get(incarnation))
    return None if heard_secs is None else now - heard_secs

  def excuse(self, incarnation: str, now: float) -> None:
    """Forgets the silence of an agent up to now."""
    if (silence := self._agents.get(incarnation)) is not None:
      silence.excuse(self.awake(now))

  def note_stall(self, incarnation: str, stall: stalls_lib.Stall | None) -> None:
    """Records a stall that another agent reports; None if there is none."""
    self._stalls.pop(incarnation, None)
    if stall is not None:
      self._stalls[incarnation] = stall

  def stall(self, now: float) -> stalls_lib.Stall | None:
    """Returns the stall of the worker if deliberate or too long, else None."""
    return self._stall if self._is_waiting or self._work.is_over(now) else None

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

  def find_fault(
      self, now: float, members: Collection[views.Member], *, me: views.Member, is_stopped: bool
  ) -> str:
    """Returns why the worker counts as dead; "" if it does not."""
    silent_secs = now - self._heard_secs
    if silent_secs > self._patience_secs:
      return f"its worker was silent for {self._patience_secs:.1f} s"
    if silent_secs > self._limits.stopped_secs and is_stopped:
      return f"its worker was stopped for {self._limits.stopped_secs:.1f} s"
    if (stall := self.stall(now)) is None:
      return ""
    found = self._stalls | {me.incarnation: stall}
    stalls = {m.number: found.get(m.incarnation) for m in members}
    if stalls_lib.find_culprit(stalls) != me.number:
      return ""
    return "its worker made no progress, and all others waited for it"

  def find_silent(self, now: float) -> dict[str, str]:
    """Returns the agents that are silent for too long, with reasons."""
    now = self.awake(now)
    return {
        incarnation: f"its agent was silent for {silence.limit_secs:.1f} s"
        for incarnation, silence in self._due().items()
        if silence.is_over(now)
    }

  def find_quiet(self, now: float) -> list[str]:
    """Returns agents with overdue heartbeats, not yet silent for too long."""
    unheard = self._unheard
    return [i for i in self._due() if i in unheard or self.is_quiet(i, now)]

  def is_quiet(self, incarnation: str, now: float) -> bool:
    """Whether heartbeats of an agent are overdue."""
    silence = self._agents.get(incarnation)
    if silence is None or not self._is_due(incarnation):
      return False
    least_secs = self._limits.least_silence_secs / _QUIET
    return silence.secs(self.awake(now)) > least_secs
