"""Heartbeats: which agent sends them to which.

Each member is watched by the next few in the order of the view, cyclically; a
joining node by all. Once a member is suspected, other than by a refusal, an
agent asks all for heartbeats, and judges only what it receives itself.

      n1 -- beat ---------> n2, n3           1. normal: two watch each
      n1 x                  n3               2. n3 has heard nothing for long
            n3 == suspects ====> all         3.
     all == beat, asks ========> all         4. all answer at once
      n0 -- beat ---------> n1, n2           5. normal, once resolved
"""

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import state as state_lib

_BEATS = 0.1  # Interval, as a part of `least_silence_secs`.


def give(state: state_lib.AgentState) -> None:
  """Sends a heartbeat when it is due or its content has changed."""
  _look(state)
  beat = _now(state)
  beat_secs, last = state.beaten
  is_news = last != beat
  least_secs = state.options.limits.least_silence_secs
  if not is_news and state.now < beat_secs + _BEATS * least_secs:
    return
  state.beaten = state.now, beat
  # An agent may enter the view after this one forgot its stall.
  concerns_all = last.view != beat.view or last.stall or beat.stall
  if concerns_all or is_news or beat.asks or not is_sparse(state):
    state.send(beat)
  else:
    newcomers = state.roster.known.keys() - {*state.roster.incarnations}
    state.send(beat, to=[*_next(state, 1), *sorted(newcomers)])


def hear(state: state_lib.AgentState, incarnation: str, beat: messages.Beat) -> None:
  """Handles a heartbeat; answers it if it asks for one."""
  state.watch.note_stall(incarnation, beat.stall)
  state.heard.add(incarnation)
  if beat.asks and state.has_worker:
    answer = _now(state)
    if not answer.asks:
      state.send(answer, to=[incarnation])


def ask(state: state_lib.AgentState) -> None:
  """Asks all agents for heartbeats if a member is suspected by now."""
  if state.has_worker and _now(state).asks and not state.beaten[1].asks:
    give(state)


def is_sparse(state: state_lib.AgentState) -> bool:
  """Whether each member is watched by only some of the others."""
  roster = state.roster
  num_others = len(roster.view.members) - 1
  return roster.is_member and num_others > state.options.limits.num_watchers


def _now(state: state_lib.AgentState) -> messages.Beat:
  stall = state.watch.stall(state.now)
  asks = is_sparse(state) and _is_unclear(state)
  return messages.Beat(stall, state.roster.view.number, asks)


def _is_unclear(state: state_lib.AgentState) -> bool:
  is_member = state.roster.view.find
  return any(
      is_member(by) and is_member(whom) for by, whom in state.suspicions.unclear(state.awake)
  )


def _look(state: state_lib.AgentState) -> None:
  """Sets which agents are expected to send heartbeats."""
  expected = None
  if is_sparse(state) and not _is_unclear(state):
    newcomers = state.roster.known.keys() - {*state.roster.incarnations}
    expected = {*_next(state, -1)} | newcomers
  state.watch.expect(expected, state.now)


def _next(state: state_lib.AgentState, direction: int) -> list[str]:
  """Returns the members that watch this one; with -1, those that it watches."""
  order = [m.incarnation for m in state.roster.view.members]
  at = order.index(state.incarnation)
  count = min(state.options.limits.num_watchers, len(order) - 1)
  steps = range(1, count + 1)
  return [order[(at + direction * i) % len(order)] for i in steps]
