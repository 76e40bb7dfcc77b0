"""Says what a trace does to the nodes of a cluster, at its times."""

import collections

from bamboo_jax.traces import replay as trace_replay
from bamboo_jax.traces import trace as trace_lib


class TracePlayer:
  """Replays a trace; whoever owns it says what time it is, and acts.

  Args:
    replay: The trace.
    first: The node started for each of `replay.first`.
  """

  def __init__(self, replay: trace_replay.Replay, first: list[str]) -> None:
    self._left = collections.deque(replay.events)
    self._names = dict(zip(replay.first, first, strict=True))
    self._start_secs: float | None = None

  def take_due(self, now_secs: float) -> list[trace_lib.Event]:
    """Returns what is due; the first call is the start of the trace.

    Args:
      now_secs: Time, on any clock that does not go back.
    """
    if self._start_secs is None:
      self._start_secs = now_secs
    now_ms = 1e3 * (now_secs - self._start_secs)
    due = []
    while self._left and self._left[0].time_ms <= now_ms:
      due.append(self._left.popleft())
    return due

  def name_of(self, event: trace_lib.Event) -> str:
    """Returns the name of the node that an event is about."""
    return self._names[event.node]

  def has_added(self, event: trace_lib.Event, name: str) -> None:
    """Takes note of the name of the node that was started for an event."""
    self._names[event.node] = name
