"""The worker of an agent: its messages, and its exit."""

from collections.abc import Mapping
from typing import Any

from bamboo_jax.cluster import children
from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import links
from bamboo_jax.cluster.agent import membership
from bamboo_jax.cluster.agent import state as state_lib
from bamboo_jax.cluster.store import registry as registry_lib

_Registry = registry_lib.Registry
_RETRY_SECS = 0.1
_STATUS_SECS = 1.0  # Interval of reports to the store.


def hear(state: state_lib.AgentState, message: Any) -> None:
  """Handles one of `messages.FROM_WORKER`."""
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
    case messages.Slow(reason):
      membership.take_notice(state, reason)
    case messages.Leave():
      state.send(messages.Gone("handed over after a notice"))
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


def end(state: state_lib.AgentState, code: int) -> None:
  """Handles the exit of the worker."""
  roster, me = state.roster, state.incarnation
  if state.is_done:
    state.finish(events_lib.End())
    return
  ended = f"its worker {children.describe_exit(code)}"
  reason = state.fault or ended
  # A worker that failed by itself would fail again.
  if code >= 0 or (state.fault and not roster.is_member):
    state.start(_fail(state, reason))
  elif not roster.is_member:
    state.restart(reason)
  elif me not in roster.gone:
    state.cause = reason  # Others may continue without it.
    roster.gone[me] = reason
    state.do(events_lib.Log(reason))
    state.send(state.gone(reason, is_workerless=True))


def _fail(state: state_lib.AgentState, reason: str) -> events_lib.Flow:
  """Ends, unless the run has restarted: then the worker had to end."""
  try:
    yield from membership.read_made(state)
    claim, _ = yield events_lib.CallFence("read")
    if claim is not None and claim.stamp != state.stamp:
      state.restart("the run has restarted")
  except OSError as error:
    state.warn(f"{error}")
  if state.is_done:  # The exit may be seen before the last messages are read.
    state.finish(events_lib.End())
  if not state.is_ending:
    state.send(state.gone(reason))
    state.finish(events_lib.End(reason))


def _make_sure(state: state_lib.AgentState) -> events_lib.Flow:
  """Tells the worker that it is still a member, if the folder says so.

  While this agent was suspended, a view without this node may have been made;
  then it is in the folder, even if the message is still unread.
  """
  yield from state.until_ok(membership.read_made, state)
  if not state.is_ending:
    state.tell_worker(messages.StillMember())


def _report(state: state_lib.AgentState, status: Mapping[str, Any]) -> None:
  state.status |= status
  state.is_status_new = True
  state.start(_write_status(state), once=True)


def _write_status(state: state_lib.AgentState) -> events_lib.Flow:
  """Writes the newest status to the store, at most once a second."""
  while state.is_status_new:
    state.is_status_new = False
    try:
      yield events_lib.store(_Registry.write_status, dict(state.status))
    except OSError as error:
      state.warn(f"{error}")
    yield events_lib.Sleep(_STATUS_SECS)
