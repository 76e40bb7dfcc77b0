"""The decisions of an agent: `on(state, event, now)` returns actions.

Nothing here waits, connects, writes or looks at a clock; `agent.Agent` does,
and so does a simulator. A protocol of several steps, such as a join, is a flow:
a generator that yields requests and is sent the answers.
"""

from collections.abc import Mapping
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import children, judge, messages
from bamboo_jax.cluster.agent import (
    arrival,
    events as events_lib,
    links,
    membership,
    run_over,
    state as state_lib,
)

_RETRY_SECS = 0.1
_STATUS_SECS = 1.0  # Interval of reports for `bamboo status`.


def on(state: state_lib.AgentState, event: Any, now: float) -> list[Any]:
  """Returns the actions for an event; updates `state`; `now` never falls."""
  state.now, state.actions = now, []
  if state.watch.was_away(now):
    state.suspicions.wait_again(state.awake)
  match event:
    case events_lib.PeerSaid(incarnation, message):
      _hear_peer(state, incarnation, message)
    case events_lib.WorkerSaid(message):
      _hear_worker(state, message)
    case events_lib.Answered(flow, answer, error):
      state.advance(flow, answer, error)
    case events_lib.Ticked(is_worker_stopped, is_worker_busy):
      if is_worker_busy:
        state.watch.note_busy(state.now)
      membership.look_around(state, is_worker_stopped=is_worker_stopped)
      run_over.look(state)
    case events_lib.PeerCame(member):
      links.accept(state, member)
    case events_lib.PeerAccepted(incarnation):
      links.mend(state, incarnation)
    case events_lib.PeerReached(incarnation):
      links.connect(state, incarnation)
      membership.decide_soon(state)
    case events_lib.PeerClosed(incarnation, reason):
      links.close(state, incarnation, reason)
    case events_lib.PeerFailed(incarnation, reason, is_refused):
      links.fail(state, incarnation, reason, is_refused)
      membership.decide_soon(state)
    case events_lib.WorkerExited(code):
      _end_worker(state, code)
    case events_lib.Noticed(reason):
      membership.take_notice(state, reason)
    case events_lib.Began():
      state.start(arrival.join(state))
  return state.actions


def _hear_peer(state: state_lib.AgentState, incarnation: str, message: Any) -> None:
  if incarnation in state.roster.left:  # It was removed while suspended.
    return
  if state.watch.is_quiet(incarnation, state.now):
    # Agents that suspect it receive this too, and take it back.
    state.suspicions.wait_again(state.awake, ends={incarnation})
  state.watch.note(incarnation, state.now)
  roster = state.roster
  match message:
    case messages.Post():
      if (member := roster.known.get(incarnation)) is not None:
        state.board.post(member.number, message)
        state.deliver(message.view)
    case messages.Beat():
      state.heard.add(incarnation)
    case messages.Ready():
      roster.ready[incarnation] = message
      membership.decide_soon(state)
    case messages.NewView(view):
      membership.hear_of(state, view)
    case messages.Notice(reason):
      roster.noticed[incarnation] = reason
      membership.decide_soon(state)
    case messages.Gone(reason, silent_secs=silent_secs):
      roster.gone[incarnation] = reason
      if silent_secs is not None:
        state.watch.note_end(incarnation, state.now, silent_secs)
      membership.decide_soon(state)
    case messages.Suspects(count, suspects):
      there = [s for s in suspects if s.incarnation not in roster.left]
      if state.suspicions.note(incarnation, there, count=count, now=state.awake):
        membership.decide_soon(state)
    case messages.Assignment():
      state.received = message
      if state.has_worker and state.origin is None:
        state.tell_worker(message)
    case messages.Done():
      roster.done.add(incarnation)
    case messages.Failed(reason) if incarnation in roster.incarnations:
      state.finish(events_lib.End(error=base.RunFailedError(reason)))


def _hear_worker(state: state_lib.AgentState, message: Any) -> None:
  roster = state.roster
  state.watch.note_worker(state.now)
  match message:
    case messages.Post():
      members = roster.find_view(message.view).members
      others = {m.incarnation for m in members} - {state.incarnation}
      state.send(message, to=sorted(others))
      state.board.post_own(roster.own.number, message)
      state.deliver(message.view)
    case messages.Adopt(view):
      state.board.move_to(view)
      roster.drop_older(view)
    case messages.WorkerBeat():
      state.watch.note_progress(message, state.now)
    case messages.WorkerReady():
      state.watch.begin(state.now, is_ready=True)
      state.ready_secs = state.now
      state.start(_say_ready(state))
    case messages.Assignment(facts):
      state.assignment = message
      _report(state, {"layout": facts})
      for incarnation in roster.known:
        links.tell_assignment(state, incarnation)
    case messages.Report(facts):
      _report(state, facts)
    case messages.Doubt():
      state.start(_make_sure(state))
    case messages.Done():
      roster.done.add(state.incarnation)
    case messages.Failed(reason):
      state.send(message)
      state.finish(events_lib.End(error=base.RunFailedError(reason)))
    case messages.Slow(reason):
      membership.take_notice(state, reason)
    case messages.Leave():
      state.send(messages.Gone("handed over after a notice"))
      state.has_left = True
      state.finish(events_lib.End())


def _say_ready(state: state_lib.AgentState) -> events_lib.Flow:
  """Reports that the node is ready, once it knows which members it reaches."""
  roster, me = state.roster, state.incarnation
  tried = state.connected | state.unreachable.keys() | {me}
  while {*roster.incarnations} - tried:
    yield events_lib.Sleep(_RETRY_SECS)
    tried = state.connected | state.unreachable.keys() | {me}
  ready = roster.ready[me] = messages.Ready(state.origin)
  state.send(ready)
  membership.decide(state)


def _end_worker(state: state_lib.AgentState, code: int) -> None:
  roster, me = state.roster, state.incarnation
  if state.is_done:
    state.finish(events_lib.End())
    return
  ended = f"its worker {children.describe_exit(code)}"
  reason = state.fault or ended
  # Others train with the same code, so what a newcomer meets is its own.
  is_new = state.origin is None and not roster.is_member
  state.is_mistake = code == children.MISTAKE and not is_new
  # A worker that failed by itself would fail again.
  if code >= 0 or (state.fault and not roster.is_member):
    state.start(_fail(state, reason))
  elif not roster.is_member:
    state.restart(reason)
  elif me not in roster.gone:
    state.cause = reason  # Others may continue without it.
    roster.gone[me] = reason
    state.do(events_lib.Log(reason))
    state.send(state.gone(reason))


def _fail(state: state_lib.AgentState, reason: str) -> events_lib.Flow:
  """Ends, unless the run has restarted: then the worker had to end."""
  try:
    yield from membership.read(state)
  except OSError as error:
    state.warn(f"{error}")
  if state.is_done:  # The exit may be seen before the last messages are read.
    state.finish(events_lib.End())
  if not state.is_ending:
    state.send(state.gone(reason))
    state.finish(events_lib.End(reason))


def _make_sure(state: state_lib.AgentState) -> events_lib.Flow:
  """Tells the worker that it is still a member, if the log says so.

  While this agent was suspended, a view without this node may have been made;
  then it is in the log, even if the message is still unread.
  """
  yield from state.until_ok(membership.read, state)
  if not state.is_ending:
    state.tell_worker(messages.StillMember())


def _report(state: state_lib.AgentState, status: Mapping[str, Any]) -> None:
  state.status |= status
  state.is_status_new = True
  state.start(_write_status(state), once=True)


def _write_status(state: state_lib.AgentState) -> events_lib.Flow:
  """Writes the newest status, at most once a second."""
  while state.is_status_new:
    state.is_status_new = False
    try:
      yield from judge.call("mark", f"status/{state.run}", dict(state.status))
    except OSError as error:
      state.warn(f"{error}")
    yield events_lib.Sleep(_STATUS_SECS)
