"""Does to the nodes of a cluster what a trace says, at its times."""

import collections
from collections.abc import Callable

from bamboo_jax.traces import replay as trace_replay
from bamboo_jax.traces import trace as trace_lib


class TracePlayer:
  """Replays a trace; whoever owns it says what time it is.

  Args:
    replay: The trace.
    first: The node started for each of `replay.first`.
    start_node: Starts a node in a zone, "" if any will do; returns its name.
    kill_node: Kills a node.
    give_notice: Announces the preemption of a node.
    say: Called with a line for whoever watches.
  """

  def __init__(
      self,
      replay: trace_replay.Replay,
      first: list[str],
      *,
      start_node: Callable[[str], str],
      kill_node: Callable[[str], None],
      give_notice: Callable[[str], None],
      say: Callable[[str], None],
  ) -> None:
    self._left = collections.deque(replay.events)
    self._names = dict(zip(replay.first, first, strict=True))
    self._start_node = start_node
    self._kill_node = kill_node
    self._give_notice = give_notice
    self._say = say
    self._start_secs: float | None = None

  def advance(self, now_secs: float) -> None:
    """Does what is due; the first call is the start of the trace.

    Args:
      now_secs: Time, on any clock that does not go back.
    """
    if self._start_secs is None:
      self._start_secs = now_secs
    now_ms = 1e3 * (now_secs - self._start_secs)
    while self._left and self._left[0].time_ms <= now_ms:
      self._do(self._left.popleft())

  def _do(self, event: trace_lib.Event) -> None:
    if event.kind == "add":
      self._names[event.node] = self._start_node(event.zone)
    name = self._names[event.node]
    self._say(
        f"trace at_secs={event.time_ms / 1e3:.1f} {event.kind}={name} "
        f"node={event.node}"
    )
    if event.kind == "remove":
      self._kill_node(name)
    elif event.kind == "notice":
      self._give_notice(name)
