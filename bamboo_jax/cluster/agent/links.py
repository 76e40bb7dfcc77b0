"""Connections with other agents: which are up, and what follows.

A closed connection is no evidence of a death, but a failed reconnect is: if the
process of an agent is gone, its host refuses connections within milliseconds.

     this agent        the other          all members
        |--- connected ---->|
        |<-- closed --------|                  |    1. `close`
        |--- dial --------->|                  |    2. at once
        |<-- connected -----|                  |    3a. it is alive: `connect`
        |== what it missed >|                  |        resends lost messages
        |<-- refused        x                  |    3b. `fail`: certain
        |--- or no answer - x                  |    3c. `fail`: a suspicion
        |--- "suspects" ------------------- -->|    4. see `suspicion`
        |--- dial - - - - - x                  |    5. retry
        |--- dial --------->|                  |    6. its host accepts:
        |                   |                  |       `mend`; it may be busy
"""

from bamboo_jax.cluster import judge, messages, views
from bamboo_jax.cluster.agent import events as events_lib, state as state_lib

_REDIAL_SECS = 0.2
_TRY_SECS = 0.1  # A host refuses a connection within this time.
_SLOW_REDIAL_SECS = 1.0  # To agents that are not members.


def accept(state: state_lib.AgentState, member: views.Member) -> None:
  """Handles an agent that has connected to this one."""
  if member.incarnation not in state.roster.left:
    state.watch.add(member.incarnation, state.now)
    state.dial([member])


def connect(state: state_lib.AgentState, incarnation: str) -> None:
  """Resends to a connected agent the messages it may have missed."""
  roster = state.roster
  if incarnation in roster.left:
    return
  state.connected.add(incarnation)
  state.unreachable.pop(incarnation, None)
  other = roster.known.get(incarnation)
  if other is not None and other.name == roster.own.name and other.number < roster.own.number:
    why = f"Another node {other.name!r} of this run is alive; give each node its own name."
    state.finish(events_lib.End(error=ValueError(why)))
  send = lambda message: state.send(message, to=[incarnation])
  if (reason := roster.gone.get(state.incarnation)) is not None:
    send(state.gone(reason))
  if (ready := roster.ready.get(state.incarnation)) is not None:
    send(ready)
  if (reason := roster.noticed.get(state.incarnation)) is not None:
    send(messages.Notice(reason))
  if state.suspects.count:
    send(state.suspects)
  for view in roster.views():
    send(messages.NewView(view))
  tell_assignment(state, incarnation)
  for view in roster.views_of(incarnation):
    for post in state.board.own(view):
      send(post)
  if state.is_done:
    send(messages.Done())


def tell_assignment(state: state_lib.AgentState, incarnation: str) -> None:
  if state.assignment is not None and state.roster.is_member:
    if not state.roster.view.find(incarnation):
      state.send(state.assignment, to=[incarnation])


def close(state: state_lib.AgentState, incarnation: str, reason: str) -> None:
  """Reconnects to an agent at once, after its connection has broken."""
  state.connected.discard(incarnation)
  member = state.roster.known.get(incarnation)
  if member is None or state.is_ending:
    return
  last_secs = state.dialed_secs.get(incarnation, float("-inf"))
  if state.now - last_secs < _REDIAL_SECS:  # It was closed at once.
    state.start(_redial(state, incarnation))
    return
  state.do(events_lib.Log(f"{member.name}: {reason}. Connecting again."))
  _dial(state, member)


def is_trying(state: state_lib.AgentState, incarnation: str) -> bool:
  """Whether a reconnect is under way that has neither succeeded nor failed."""
  if incarnation in state.connected or incarnation in state.unreachable:
    return False
  dialed_secs = state.dialed_secs.get(incarnation, float("-inf"))
  return state.now < dialed_secs + _TRY_SECS


def fail(state: state_lib.AgentState, incarnation: str, reason: str, is_refused: bool) -> None:
  """Suspects an agent after a failed connection attempt."""
  roster = state.roster
  state.connected.discard(incarnation)
  if incarnation not in roster.known or state.is_ending:
    return
  if is_refused and not roster.view.find(incarnation):
    _drop(state, incarnation)  # Not a member: it simply left.
    state.start(_drop_mark(state, incarnation))
    return
  suspect = messages.Suspect(incarnation, f"its agent cannot be reached: {reason}", is_refused)
  state.unreachable[incarnation] = suspect
  state.start(_redial(state, incarnation))


def mend(state: state_lib.AgentState, incarnation: str) -> None:
  """Withdraws the suspicion of an agent whose host accepts connections again.

  The network was then the cause of the refusal. If this agent or the other is
  not a member, the suspicion stays until they are connected.
  """
  roster = state.roster
  if roster.is_member and roster.view.find(incarnation):
    if state.unreachable.pop(incarnation, None) is not None:
      state.watch.excuse(incarnation, state.now)
      tell_suspicions(state)


def forget(state: state_lib.AgentState, incarnation: str) -> None:
  """Drops all contact with an agent that a view has removed."""
  state.roster.left.add(incarnation)
  _drop(state, incarnation)
  state.do(events_lib.Cut(incarnation))


def _drop(state: state_lib.AgentState, incarnation: str) -> None:
  """Forgets an agent until it connects again."""
  state.connected.discard(incarnation)
  state.roster.drop(incarnation)
  state.watch.drop(incarnation)
  state.suspicions.drop(incarnation)
  state.unreachable.pop(incarnation, None)
  state.dialed_secs.pop(incarnation, None)


def _drop_mark(state: state_lib.AgentState, incarnation: str) -> events_lib.Flow:
  """Removes the mark of an agent that has left; one that lives marks itself again."""
  try:
    yield from judge.call("drop", f"nodes/{incarnation}")
  except OSError as error:
    state.warn(f"{error}")


def tell_suspicions(state: state_lib.AgentState) -> None:
  """Broadcasts the suspicions of this agent if they have changed."""
  silent = {
      i: messages.Suspect(i, reason, is_certain=False)
      for i, reason in state.watch.find_silent(state.now).items()
  }
  found = silent | state.unreachable
  suspects = tuple(found[i] for i in sorted(found.keys() - state.roster.done))
  if suspects == state.suspects.suspects:
    return
  state.suspects = messages.Suspects(state.suspects.count + 1, suspects)
  for s in suspects:
    if not state.suspicions.suspects(s.incarnation):
      member = state.roster.known.get(s.incarnation)
      name = member.name if member else "an agent that is not known here"
      state.do(events_lib.Log(f"Suspects {name}: {s.reason}"))
  state.suspicions.note(state.incarnation, suspects, count=state.suspects.count, now=state.awake)
  state.send(state.suspects)


def _redial(state: state_lib.AgentState, incarnation: str) -> events_lib.Flow:
  is_member = state.roster.view.find(incarnation) is not None
  yield events_lib.Sleep(_REDIAL_SECS if is_member else _SLOW_REDIAL_SECS)
  member = state.roster.known.get(incarnation)
  if member is not None and not state.is_ending:
    _dial(state, member)


def _dial(state: state_lib.AgentState, member: views.Member) -> None:
  state.dialed_secs[member.incarnation] = state.now
  state.do(events_lib.DialAgent(member))
