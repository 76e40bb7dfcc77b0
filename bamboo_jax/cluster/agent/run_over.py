"""The restart of a run that has lost all members.

An agent that is not a member checks whether the members of the view are gone:
they have said so, or cannot be reached. It may merely be cut off, so it then
asks them in the log of views. If none answers, it makes a view without members,
from which all agents begin another life, with a new worker, at the newest
checkpoint. It is another run if nobody is left of the former one.

  newcomer                         judge                 a member, if one lives
     |-- 1 view N+1, "asks" -------->|                             |
     |                               |<-- 2 polls, every 2 s ------|
     |   3 waits                     |<-- 4 view N+2, "is alive" --|
     |-- 5 view N+2, no members ---->|
     |<- 6 which of both is there ---|
"""

from bamboo_jax.cluster import judge, messages, views
from bamboo_jax.cluster.agent import events as events_lib, membership, state as state_lib

_ALONE_SECS = 1.0  # Live members answer within this time.


def look(state: state_lib.AgentState) -> None:
  """Restarts the run once no member has been heard for long enough."""
  roster = state.roster
  if roster.done & {*roster.incarnations} and not roster.is_at_work:
    # The run is done.
    state.finish(events_lib.End("" if _is_late(state) else state.cause))
  if _is_late(state):
    state.start(_leave(state), once=True)
  if state.is_ending or not _seems_over(state):
    state.over_secs = None
    return
  if state.over_secs is None:
    state.over_secs = state.now
  is_due = state.now >= state.over_secs + _patience_secs(state)
  if is_due:
    state.start(_end_run(state), once=True)


def _is_late(state: state_lib.AgentState) -> bool:
  """Whether members have finished the run without this one.

  A node that finishes with them may still be writing; one that is only ready to
  finish may have missed that they did.
  """
  roster, members = state.roster, {*state.roster.incarnations}
  return (
      state.incarnation in members - roster.done
      and bool(members & roster.done)
      and not state.board.has_taken(messages.FINISHED)
  )


def _leave(state: state_lib.AgentState) -> events_lib.Flow:
  """Ends an agent that did not finish together with the others."""
  yield events_lib.Sleep(state.options.limits.most_silence_secs)
  if _is_late(state):
    state.finish(events_lib.End())


def _seems_over(state: state_lib.AgentState) -> bool:
  """Whether no member is reachable; never if this node is one."""
  roster = state.roster
  if not roster.view.members or roster.is_at_work:
    return False
  members = set(roster.incarnations) - roster.gone.keys()
  return all(state.suspicions.suspects(i) for i in members)


def _patience_secs(state: state_lib.AgentState) -> float:
  """Returns how long to wait: longer if members may be alive but cut off."""
  members = set(state.roster.incarnations) - state.roster.gone.keys()
  if all(state.suspicions.is_refused(i) for i in members):
    return _ALONE_SECS
  # A permanently broken link must not fill the folder with questions.
  return state.options.limits.most_silence_secs * min(state.num_answers + 1, 8)


def _end_run(state: state_lib.AgentState) -> events_lib.Flow:
  yield from state.until_ok(membership.read, state)
  members = {*state.roster.incarnations}
  is_nobody_left = not (state.options.is_again or members & state.roster.gone.keys())
  if members - state.roster.gone.keys():
    patience_secs = state.options.limits.most_silence_secs
    ask = state.until_ok(judge.ask, state.roster.view, state.options.name, patience_secs)
    membership.learn(state, [asked := (yield from ask)])
    if not asked.is_ask or state.roster.view != asked:
      state.num_answers += 1
      state.over_secs = None  # Members are alive, only unreachable from here.
      return
  while not state.is_ending and _seems_over(state):
    view = state.roster.view
    empty = views.over(view)
    if is_nobody_left:
      empty = views.begin_run(view, empty.reason)
    made = yield from state.until_ok(judge.make_view, view, empty)
    membership.learn(state, [made])
