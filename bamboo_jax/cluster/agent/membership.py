"""Membership: how a death is believed, and a view comes about.

What happens when a node dies:

   the dead       leader                        store          others
      x              |                            |               |
      |-- 1 connection closed, or silence --------------------- ->|
      |              |--- 2 "lost": all believe it, and cut it -->|
      |              |--- 3 view N+1, if none is ->|              |
      |              |--- 4 "view": N+1 ------------------------->|
      |              |                            |               |
      |        5 each tells its worker, which stops what goes on
      |              |<-- 6 "post" of begun, status and so on --->|

  1 `lose` or `look_around`, by all that notice it
  3 `_propose`; the store takes the first of two that try
  4 `adopt`; who was not told reads it, see `arrival.look`
"""

from bamboo_jax.cluster import messages
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import state as state_lib
from bamboo_jax.cluster.store import registry as registry_lib

_Registry = registry_lib.Registry
_RETRY_SECS = 0.1
_PATIENCE_SECS = 1.0  # That an agent which has lost most others lets them go.
_ALONE_SECS = 2.0  # That the others have to say that they go on.


def lose(
    state: state_lib.State,
    incarnation: str,
    reason: str,
    is_workerless: bool = False,
) -> None:
  """Records that an agent, its worker, or both are gone, and tells all."""
  if is_workerless:
    state.ending.workerless.add(incarnation)
  if state.ending.is_near or not state.roster.lose(incarnation, reason):
    return
  state.do(events_lib.Log(f"Lost {incarnation}: {reason}"))
  # All must believe the same, true or not.
  state.send(messages.Lost(incarnation, reason, is_workerless))
  state.do(events_lib.Cut(incarnation))
  state.watch.drop(incarnation)
  if state.roster.view.members and state.roster.leader() is None:
    state.start(_make_sure_it_is_over(state))
  decide(state)


def look_around(state: state_lib.State, *, is_worker_stopped: bool) -> None:
  """Sends a heartbeat, and finds the agents that have sent none."""
  if not state.has_worker:
    return
  state.watch.tick(state.now)
  if fault := state.watch.find_fault(
      state.now,
      state.roster.view.members,
      me=state.roster.me,
      is_stopped=is_worker_stopped,
  ):
    state.ending.fault = fault
    state.do(events_lib.KillWorker())  # Fenced: it will do no harm if it wakes.
  for incarnation, reason in state.watch.find_silent(state.now).items():
    lose(state, incarnation, reason)
  state.send(messages.Beat(state.watch.stall(state.now)))


def take_notice(state: state_lib.State, reason: str) -> None:
  """Announces a preemption: others take over, then this node ends."""
  roster = state.roster
  if roster.can_hand_over:
    roster.noticed[state.incarnation] = reason
    state.send(messages.Notice(reason))
    decide(state)
  elif not roster.is_member:
    why = f"it will be preempted ({reason}), and has not joined yet"
    state.finish(events_lib.End(why))


def decide(state: state_lib.State) -> None:
  """Makes the next view, if that is this agent's turn."""
  state.start(_propose(state), once=True)


def _propose(state: state_lib.State) -> events_lib.Flow:
  """Writes views to the store until there is nothing to do here.

  An agent that has lost most others lets them go first, as it may be the one
  that is cut off, or was stopped.
  """
  yield events_lib.Sleep(0.0)  # All that has come by now belongs to one view.
  while (view := _wanted(state)) is not None:
    try:
      is_minority = views.is_minority(state.roster.view, view)
      if is_minority and state.patient_for < view.number:
        state.patient_for = view.number
        yield events_lib.Sleep(_PATIENCE_SECS)
        yield from read(state)
      elif (yield events_lib.store(_Registry.write_view, view)):
        state.send(messages.NewView(view))
        adopt(state, view)
      else:
        yield from read(state)
    except OSError as error:
      state.warn(f"{error} Trying again.")
      yield events_lib.Sleep(_RETRY_SECS)


def _wanted(state: state_lib.State) -> views.View | None:
  if state.ending.is_near:
    return None  # Others turn away from it, which says nothing about them.
  era = state.services.needed(state.roster.view.era)
  return state.roster.wanted(era=era)


def read(state: state_lib.State) -> events_lib.Flow:
  """Reads all views unknown here, in order; only the last if none is known."""
  if known := state.roster.view.number:
    found = yield events_lib.store(_Registry.read_views, known)
  else:
    newest = yield events_lib.store(_Registry.read_view)
    found = [newest] if newest is not None else []
  for view in found:
    adopt(state, view)


def read_until_ok(state: state_lib.State) -> events_lib.Flow:
  """Reads the unknown views as soon as the store answers."""
  yield from state.until_ok(lambda: read(state))


def hear_of(state: state_lib.State, view: views.View) -> None:
  """Adopts a view, and those before it."""
  if view.number - 1 in (0, state.roster.view.number):
    adopt(state, view)
  else:
    state.start(read_until_ok(state))


def adopt(state: state_lib.State, view: views.View) -> None:
  """Adopts a view if it is newer, and tells the worker."""
  was_in, former = state.roster.is_member, state.roster.view
  if not state.roster.adopt(view):
    return
  state.do(events_lib.Log(f"View {view.number}: {view.reason}"))
  if was_in and not state.roster.is_member:
    without = f"the others go on without it: {view.reason}"
    state.finish(events_lib.End(state.ending.cause or without))
    return
  for member in former.members:
    if not view.find(member.incarnation):
      lose(state, member.incarnation, view.reason)
  for member in view.members:
    state.dial(member)
  state.start(_find_service(state, view.era))
  state.tell_worker(messages.NewView(view))
  state.deliver(view.number)
  decide(state)


def look_at_services(state: state_lib.State) -> events_lib.Flow:
  """Tells the worker of new eras."""
  for era in (yield from state.services.look()):
    if state.has_worker:
      state.tell_worker(messages.NewEra(era))
    decide(state)


def _find_service(state: state_lib.State, era: int) -> events_lib.Flow:
  while state.services.newest < era:
    yield from state.until_ok(lambda: look_at_services(state))
    yield events_lib.Sleep(0.0)


def _make_sure_it_is_over(state: state_lib.State) -> events_lib.Flow:
  """Ends the run if nobody is left, unless others have only left this one."""
  end_secs = state.now + _ALONE_SECS
  while state.now < end_secs:
    yield from read_until_ok(state)
    yield events_lib.Sleep(_RETRY_SECS)
  if state.roster.leader() is None and not state.ending.is_near:
    state.ending.is_run_over = True
    state.ending.workerless.add(state.incarnation)
    why = f"nobody is left of run {state.options.run!r} to join"
    state.finish(events_lib.End(why))
