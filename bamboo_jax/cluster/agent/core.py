"""The decisions of an agent: `on(state, event, now)` returns actions.

Nothing here waits, connects, writes or looks at a clock; `agent.Agent` does,
and so does a simulator. A protocol of several steps, such as a join, is a flow:
a generator that yields requests and is sent the answers.
"""

from typing import Any

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import arrival
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import membership
from bamboo_jax.cluster.agent import own_worker
from bamboo_jax.cluster.agent import state as state_lib


def on(state: state_lib.State, event: Any, now: float) -> list[Any]:
  """Returns the actions of an event; changes `state`; `now` never goes back."""
  state.now, state.actions = now, []
  match event:
    case events_lib.PeerSaid(incarnation, message):
      if incarnation not in state.roster.lost:  # Else left out, and woken.
        state.watch.note(incarnation, now)
        _hear(state, incarnation, message)
    case events_lib.WorkerSaid(message):
      own_worker.hear(state, message)
    case events_lib.Answered(flow, answer, error):
      state.advance(flow, answer, error)
    case events_lib.Ticked(is_worker_stopped):
      membership.look_around(state, is_worker_stopped=is_worker_stopped)
    case events_lib.PeerCame(member):
      state.roster.known[member.incarnation] = member
      state.watch.add(member.incarnation, now)
      state.dial(member)
    case events_lib.PeerReached(incarnation):
      _greet(state, incarnation)
    case events_lib.PeerLost(incarnation, reason):
      membership.lose(state, incarnation, reason)
    case events_lib.WorkerExited(code):
      own_worker.end(state, code)
    case events_lib.ServiceLost(era):
      state.services.lose(era)
      membership.decide(state)
    case events_lib.Noticed(reason):
      membership.take_notice(state, reason)
    case events_lib.Began():
      state.start(arrival.live(state))
  return state.actions


def _hear(state: state_lib.State, incarnation: str, message: Any) -> None:
  match message:
    case messages.Post():
      number = state.roster.known[incarnation].number
      state.board.post(number, message)
      state.deliver(message.view)
    case messages.Beat(stall):
      state.watch.note_stall(incarnation, stall)
    case messages.Ready(era):
      state.roster.ready[incarnation] = era
      membership.decide(state)
    case messages.NewView(view):
      membership.hear_of(state, view)
    case messages.Notice(reason):
      state.roster.noticed[incarnation] = reason
      membership.decide(state)
    case messages.Lost(lost, reason, is_workerless):
      if lost != state.incarnation:
        membership.lose(state, lost, reason, is_workerless)
    case messages.Assignment():
      state.tell_worker(message)
    case messages.Done():
      state.roster.done.add(incarnation)


def _greet(state: state_lib.State, incarnation: str) -> None:
  """Tells an agent that has just been reached what it has missed."""
  roster = state.roster
  if state.incarnation in roster.ready:
    state.send(messages.Ready(state.services.used), to=incarnation)
  if (reason := roster.noticed.get(state.incarnation)) is not None:
    state.send(messages.Notice(reason), to=incarnation)
  own_worker.tell_assignment(state, incarnation)
