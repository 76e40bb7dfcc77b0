"""The decisions of an agent: `on(state, event, now)` returns actions.

Nothing here waits, connects, writes or looks at a clock; `agent.Agent` does,
and so does a simulator. A protocol of several steps, such as a join, is a flow:
a generator that yields requests and is sent the answers.
"""

from typing import Any

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import arrival
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import heartbeats
from bamboo_jax.cluster.agent import links
from bamboo_jax.cluster.agent import membership
from bamboo_jax.cluster.agent import own_worker
from bamboo_jax.cluster.agent import run_over
from bamboo_jax.cluster.agent import state as state_lib


def on(state: state_lib.AgentState, event: Any, now: float) -> list[Any]:
  """Returns the actions for an event; updates `state`; `now` never falls."""
  state.now, state.actions = now, []
  if state.watch.was_away(now):
    state.suspicions.wait_again(state.awake)
  match event:
    case events_lib.PeerSaid(incarnation, message):
      _hear_peer(state, incarnation, message)
    case events_lib.WorkerSaid(message):
      own_worker.hear(state, message)
    case events_lib.Answered(flow, answer, error):
      state.advance(flow, answer, error)
    case events_lib.Ticked(is_worker_stopped):
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
      own_worker.end(state, code)
    case events_lib.Noticed(reason):
      membership.take_notice(state, reason)
    case events_lib.Began():
      state.start(arrival.join(state))
  return state.actions


def _hear_peer(
    state: state_lib.AgentState, incarnation: str, message: Any
) -> None:
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
      heartbeats.hear(state, incarnation, message)
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
      if state.suspicions.note(
          incarnation, there, count=count, now=state.awake
      ):
        heartbeats.ask(state)
        membership.decide_soon(state)
    case messages.Assignment():
      state.received = message
      if state.has_worker and state.origin is None:
        state.tell_worker(message)
    case messages.Done():
      roster.done.add(incarnation)
