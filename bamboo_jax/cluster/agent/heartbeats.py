"""Signs of life: who gives them to whom.

Each member is watched by the next few in the order of the view, all around;
who is no member yet, by all. Once anybody is suspected, and not for being
refused, or this agent doubts that it is a member, it asks all, and judges by
what it hears itself.

      n1 -- beat ---------> n2, n3           1. calm: two watch each
      n1 x                  n3               2. n3 has heard nothing for long
            n3 == suspects ====> all         3.
     all == beat, asks ========> all         4. who is asked answers at once
      n0 -- beat ---------> n1, n2           5. calm again, once it is clear
"""

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import state as state_lib

_BEATS = 0.1  # Part of the shortest silence that is a death.


def give(state: state_lib.State) -> None:
  """Gives a sign of life when it is due, or there is news for all."""
  _look(state)
  beat = _now(state)
  beat_secs, last = state.beaten
  is_news = last != beat
  least_secs = state.options.limits.least_silence_secs
  if not is_news and state.now < beat_secs + _BEATS * least_secs:
    return
  state.beaten = state.now, beat
  # Who is in a new view later than this agent has forgotten its stall.
  if is_news or beat.asks or beat.stall is not None or not is_sparse(state):
    state.send(beat)
    return
  newcomers = state.roster.known.keys() - {*state.roster.incarnations}
  state.send(beat, to=[*_next(state, 1), *sorted(newcomers)])


def hear(state: state_lib.State, incarnation: str, beat: messages.Beat) -> None:
  """Handles a sign of life; answers who asks for one."""
  state.watch.note_stall(incarnation, beat.stall)
  if beat.view == state.roster.view.number:
    state.agreeing.add(incarnation)
  if beat.asks and state.has_worker and not _now(state).asks:
    state.send(_now(state), to=[incarnation])


def ask(state: state_lib.State) -> None:
  """Asks all for a sign of life if somebody is suspected by now."""
  if state.has_worker and _now(state).asks and not state.beaten[1].asks:
    give(state)


def is_sparse(state: state_lib.State) -> bool:
  """Whether only some watch each member."""
  roster = state.roster
  num_others = len(roster.view.members) - 1
  return roster.is_member and num_others > state.options.limits.num_watchers


def _now(state: state_lib.State) -> messages.Beat:
  stall = state.watch.stall(state.now)
  asks = is_sparse(state) and _is_unclear(state)
  return messages.Beat(stall, state.roster.view.number, asks)


def _is_unclear(state: state_lib.State) -> bool:
  is_member = state.roster.view.find
  return state.doubts or any(
      is_member(by) and is_member(whom)
      for by, whom in state.suspicions.unclear(state.now)
  )


def _look(state: state_lib.State) -> None:
  """Waits for signs of life of those who owe them."""
  expected = None
  if is_sparse(state) and not _is_unclear(state):
    members = {*state.roster.incarnations}
    expected = {*_next(state, -1)} | (state.roster.known.keys() - members)
  state.watch.expect(expected, state.now)


def _next(state: state_lib.State, direction: int) -> list[str]:
  """Returns the members after this one that watch it; before it with -1."""
  order = state.roster.incarnations
  at = order.index(state.incarnation)
  steps = range(1, state.options.limits.num_watchers + 1)
  return [order[(at + direction * i) % len(order)] for i in steps]
