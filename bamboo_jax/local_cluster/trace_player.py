"""Plays the events of a trace on the nodes of a cluster."""

import collections

from bamboo_jax.traces import replay as trace_replay
from bamboo_jax.traces import trace as trace_lib


class TracePlayer:
  """Replays a trace; the caller tells the time, and acts."""

  def __init__(self, replay: trace_replay.Replay, first: list[str]) -> None:
    self._left = collections.deque(replay.events)
    self._names = dict(zip(replay.first, first, strict=True))
    self._start_secs: float | None = None

  def take_due(self, now_secs: float) -> list[trace_lib.Event]:
    """Returns the events that are due; the first call starts the trace."""
    if self._start_secs is None:
      self._start_secs = now_secs
    now_ms = 1e3 * (now_secs - self._start_secs)
    due = []
    while self._left and self._left[0].time_ms <= now_ms:
      due.append(self._left.popleft())
    return due

  def name_of(self, event: trace_lib.Event) -> str:
    """Returns the name of the node of an event."""
    return self._names[event.node]

  def has_added(self, event: trace_lib.Event, name: str) -> None:
    """Records the name of the node that was started for an event."""
    self._names[event.node] = name
