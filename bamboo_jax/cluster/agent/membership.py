"""Membership: how a new view is made.

What happens when a node dies:

   the dead       leader                       judge           others
      x              |                            |               |
      |-- 1 connections closed, and refused; or silence --------->|
      |              |<-- 2 "suspects" -------------------------->|
      |              |--- 3 view N+1, if none is ->|              |
      |              |--- 4 "view": N+1 ------------------------->|
      |              |                            |               |
      |        5 each tells its worker, which interrupts the step
      |              |<-- 6 "post" of begun, status and so on --->|

  1 see `links` and `watch`; an agent whose worker died reports it: "gone"
  2 `selection` decides which nodes to remove and which to admit
  3 `_propose`; of several proposals the first that is recorded counts, see
    `judge`
  4 `adopt`; an agent that missed the message reads the view, see `look`. Only
    now are connections with the dead cut.

If the leader does not act, the next member does. An agent that seems cut off
waits, so that the others propose first.
"""

from collections.abc import Collection
import math

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import judge, messages, views
from bamboo_jax.cluster.agent import events as events_lib, links, selection, state as state_lib

_BEATS = 0.1  # Interval of heartbeats, as a part of `least_silence_secs`.
_MOST_HEARD = 600.0  # Heartbeats that an agent receives in a second.
_SOON_SECS = 0.005
_RETRY_SECS = 0.1
_PATIENCE_SECS = 1.0  # An agent that has lost most others waits so long.
_HANDOVER_SECS = 2.0  # After that the next member proposes.
_LOOK_SECS = 2.0  # Interval of reads of the records.
_FIRST_LOOK_SECS = 0.2  # Until this agent is a member.
_NUM_LOOKERS = 3  # Members that look for new agents.
_HANG_SECS = 1.0  # A folder hangs if it has given no answer for so long.
_LASTING_HANG_SECS = 60.0  # Then a worker may count as hanging all the same.
_SETTLE_SECS = 2.0  # Wait of an agent whose worker is gone.


def look_around(state: state_lib.AgentState, *, is_worker_stopped: bool) -> None:
  """Sends a heartbeat, and finds silent agents."""
  state.watch.tick(state.now)
  hung_secs = state.now - state.folder_secs
  if _HANG_SECS <= hung_secs < _LASTING_HANG_SECS:
    state.watch.excuse_work(state.now)  # It may wait for the folder, too.
  if state.has_worker:
    if fault := state.watch.find_fault(state.now, is_stopped=is_worker_stopped):
      state.fault = fault
      state.do(events_lib.KillWorker())  # Fenced: it must not resume.
    _beat(state)
  links.tell_suspicions(state)
  _tell_trouble(state)
  decide(state)


def _beat(state: state_lib.AgentState) -> None:
  """Sends a heartbeat when one is due; of many agents each sends fewer."""
  secs = max(_BEATS * state.options.limits.least_silence_secs, len(state.connected) / _MOST_HEARD)
  if state.now >= state.beaten_secs + secs:
    state.beaten_secs = state.now
    state.send(messages.Beat())


def _tell_trouble(state: state_lib.AgentState) -> None:
  """Tells the worker whether a view is due, for which it should wait."""
  roster = state.roster
  is_due = any(i in roster.gone or state.suspicions.suspects(i) for i in roster.incarnations)
  if is_due != state.is_in_trouble:
    state.is_in_trouble = is_due
    state.tell_worker(messages.Trouble(is_due))


def take_notice(state: state_lib.AgentState, reason: str) -> None:
  """Handles a preemption notice: others take over, then this node exits."""
  roster = state.roster
  if roster.can_hand_over:
    roster.noticed[state.incarnation] = reason
    state.send(messages.Notice(reason))
    decide(state)
  elif not roster.is_member:
    why = f"it will be preempted ({reason}), and has not joined yet"
    state.finish(events_lib.End(why))


def decide(state: state_lib.AgentState) -> None:
  """Proposes the next view if one is due and it is this agent's turn."""
  if _wanted(state) is not None:
    state.start(_propose(state), once=True)


def decide_soon(state: state_lib.AgentState) -> None:
  """Calls `decide` once for all messages of the next few milliseconds.

  In large clusters every agent reports every death.
  """
  if state.now >= state.decided_secs + _SOON_SECS:
    _decide_again(state)
  else:
    state.start(_decide_later(state), once=True)


def _decide_later(state: state_lib.AgentState) -> events_lib.Flow:
  yield events_lib.Sleep(_SOON_SECS)
  _decide_again(state)


def _decide_again(state: state_lib.AgentState) -> None:
  state.decided_secs = state.now
  links.tell_suspicions(state)
  decide(state)


def _propose(state: state_lib.AgentState) -> events_lib.Flow:
  """Proposes views until none is due.

  An agent that has lost most others waits for them, as it may be the one that
  is cut off or was suspended. If they do not refuse connections, it asks.
  """
  yield events_lib.Sleep(0.0)  # Events queued by now belong to one view.
  while (view := _wanted(state)) is not None:
    try:
      doubt = selection.doubt(state, view)
      if doubt == selection.Uncertainty.GREAT:
        yield from _ask_lost(state, view)
      elif doubt and state.patient_for < view.number:
        yield events_lib.Sleep(_PATIENCE_SECS)
        state.patient_for = view.number
      else:
        learn(state, [(yield from judge.make_view(state.roster.view, view))])
    except OSError as error:
      state.warn(f"{error} Trying again.")
      yield events_lib.Sleep(_RETRY_SECS)


def _ask_lost(state: state_lib.AgentState, view: views.View) -> events_lib.Flow:
  """Asks in the log those that `view` removes, and waits.

  Only without an answer it may be made; if one answers, all wait for the
  network.
  """
  asked = state.roster.view
  whom = [m for m in asked.members if not view.find(m.incarnation)]
  if not asked.is_ask or not {m.number for m in whom} <= {*asked.asked}:
    question = views.ask(asked, state.options.name, whom)
    asked = yield from judge.make_view(asked, question)
    learn(state, [asked])
  patience_secs = state.options.limits.most_silence_secs
  if all(state.suspicions.is_refused(m.incarnation) for m in whom):
    # Their hosts are not stopped, so those alive look at the log meanwhile.
    patience_secs = min(patience_secs, 2 * _LOOK_SECS)
  end_secs = state.now + patience_secs
  while state.now < end_secs:
    yield events_lib.Sleep(_RETRY_SECS)
    if (due := _wanted(state)) is None:
      return
    if selection.doubt(state, due) < selection.Uncertainty.GREAT:
      return
  yield from read(state)
  if asked.is_ask and state.roster.view.number == asked.number:
    state.patient_for = asked.next_number


def _wanted(state: state_lib.AgentState) -> views.View | None:
  """Returns the view that this agent has to propose now, or None."""
  roster = state.roster
  if state.is_ending or not state.has_worker:
    return None
  begins = not roster.view.members
  lost = {} if begins else selection.find_lost(state)
  joining = selection.find_first(state) if begins else selection.find_newcomers(state)
  if lost is None or joining is None:
    return None
  view = views.next_view(roster.view, lost=lost, candidates=joining, noticed=roster.noticed)
  if view is roster.view:
    state.due = (0, 0.0)
    return None
  if state.due[0] != view.number:
    state.due = (view.number, state.now)
  over = lost.keys() | roster.done
  proposers = [
      m.incarnation
      for m in (sorted(joining) if begins else roster.view.members)
      if m.incarnation not in over
  ]
  if state.incarnation not in proposers:
    return None
  wait_secs = _HANDOVER_SECS * proposers.index(state.incarnation)
  return view if state.now >= state.due[1] + wait_secs else None


def read(state: state_lib.AgentState) -> events_lib.Flow:
  """Reads all views unknown here, in order; only the last if none is known."""
  if not state.roster.view.number:
    learn(state, [(yield from judge.newest_view())])
  else:
    learn(state, (yield from judge.views_after(state.roster.view.number)))


def learn(state: state_lib.AgentState, found: Collection[views.View]) -> None:
  """Adopts views that were read, in order."""
  for view in found:
    if view.number > state.roster.view.number:
      state.send(messages.NewView(view))  # Others may not reach the judge.
      adopt(state, view)


def hear_of(state: state_lib.AgentState, view: views.View) -> None:
  """Adopts a view of another agent, after reading those in between.

  Agents that are not members need not know the views in between.
  """
  known = state.roster.view.number
  if known in (0, view.number - 1) or not state.roster.is_member:
    adopt(state, view)
  elif view.number > known:
    state.start(_catch_up(state), once=True)


def _catch_up(state: state_lib.AgentState) -> events_lib.Flow:
  yield from state.until_ok(read, state)


def adopt(state: state_lib.AgentState, view: views.View) -> None:
  """Adopts a view if it is newer, and tells the worker."""
  if view.repeats > state.roster.view.number:  # A newcomer has missed it.
    adopt(state, views.original(view))
  was_in, former = state.roster.is_member, state.roster.view
  if not state.roster.adopt(view):
    return
  state.heard.clear()
  state.do(events_lib.Log(f"View {view.number}: {view.text}"))
  silent = _find_silent(state, former, view)
  _leave_out(state, former, view)
  if view.run != state.run:
    state.restart("another run has begun in the folder")
  elif view.repeats:  # The worker knows the original.
    if view.is_ask:
      state.start(_answer(state), once=True)
  elif state.roster.is_member:
    state.watch.excuse_work(state.now)
    if silent:
      state.tell_worker(messages.Silent(view.number, silent))
    state.tell_worker(messages.NewView(view))
    state.deliver(view.number)
  elif was_in and view.members:
    if state.cause:
      state.start(_stand_by(state), once=True)
    else:
      why = f"the others continue without it: {view.reason}"
      state.finish(events_lib.End(why))
  elif state.roster.own.number in view.numbers:
    state.restart("another node has its number")
  elif state.has_origin:
    _compare_origin(state, view)
  decide(state)


def _find_silent(
    state: state_lib.AgentState, former: views.View, view: views.View
) -> dict[base.NodeId, float]:
  """Returns how long lost nodes had been silent, of those ever heard."""
  found = {
      m.number: state.watch.silent_secs(m.incarnation, state.now)
      for m in former.members
      if not view.find(m.incarnation)
  }
  return {number: secs for number, secs in found.items() if secs is not None}


def _answer(state: state_lib.AgentState) -> events_lib.Flow:
  """Answers a question in the log: this member is alive."""
  while (asked := state.roster.view).is_ask and state.roster.is_at_work:
    is_asked = not asked.asked or state.roster.own.number in asked.asked
    if state.is_ending or not is_asked:
      return
    try:
      answer = views.answer(asked, state.options.name)
      learn(state, [(yield from judge.make_view(asked, answer))])
    except OSError as error:
      state.warn(f"{error} Trying again.")
      yield events_lib.Sleep(_RETRY_SECS)


def look(state: state_lib.AgentState) -> events_lib.Flow:
  """Finds views and agents that this agent has not heard of, until the end."""
  while True:
    state.folder_secs = min(state.folder_secs, state.now)
    try:
      yield from read(state)
      yield from _look_for_agents(state)
      state.folder_secs = math.inf
    except OSError as error:
      state.warn(f"{error}")
    is_first = not state.roster.is_member
    yield events_lib.Sleep(_FIRST_LOOK_SECS if is_first else _LOOK_SECS)


def _look_for_agents(state: state_lib.AgentState) -> events_lib.Flow:
  """Connects to marked agents; marks this one until it is a member."""
  roster, me = state.roster, state.incarnation
  if me in roster.incarnations[_NUM_LOOKERS:]:
    return  # Who comes connects to all members.
  found = {*(yield from judge.call("names", "nodes"))}
  is_due = not roster.view.members and state.now >= state.marked_secs + _LOOK_SECS
  if is_due or me not in found:
    yield from mark(state)
  there = []
  for life in sorted(found - roster.known.keys() - roster.left - {me}):
    if (value := (yield from judge.call("find", f"nodes/{life}"))) is not None:
      there.append(json_lib.from_plain(views.Member, value["member"]))
  if me in roster.incarnations[:1]:
    for life in sorted(found & roster.left):  # They may be unable to.
      yield from judge.call("drop", f"nodes/{life}")
  roster.registered = found - roster.left
  state.dial(there)


def mark(state: state_lib.AgentState) -> events_lib.Flow:
  """Shows others where this agent listens, and that it lives."""
  state.marked_secs = state.now
  value = {"member": json_lib.to_plain(state.roster.own), "awake_secs": state.awake}
  yield from judge.call("mark", f"nodes/{state.incarnation}", value)


def _leave_out(state: state_lib.AgentState, former: views.View, view: views.View) -> None:
  """Cuts connections with removed nodes; connects to the members of a view."""
  for member in former.members:
    if not view.find(member.incarnation) and view.members:
      if member.incarnation != state.incarnation:
        # An agent whose worker died may be needed for a restart.
        if member.incarnation not in state.roster.gone:
          links.forget(state, member.incarnation)
        state.watch.drop(member.incarnation)
  for member in view.members:
    if member.incarnation != state.incarnation:
      state.watch.add(member.incarnation, state.now)
  state.dial(view.members)


def _compare_origin(state: state_lib.AgentState, view: views.View) -> None:
  """Restarts this agent if its worker started from an outdated view."""
  if not view.members:
    if state.origin != view.number:
      state.restart(view.reason)
  elif view.epoch != state.epoch:
    state.restart("the run has restarted")
  elif state.origin is not None:
    state.restart(f"view {view.number} started without it")
  else:
    state.tell_worker(messages.NewView(view))


def _stand_by(state: state_lib.AgentState) -> events_lib.Flow:
  """Ends after a while, unless no other member is alive by then either."""
  yield events_lib.Sleep(_SETTLE_SECS)
  while not state.is_ending:
    roster = state.roster
    quiet = state.watch.find_quiet(state.now)
    alive = {*roster.incarnations} - roster.gone.keys() - {*quiet}
    alive &= state.heard  # An unheard agent may have died meanwhile.
    if roster.done or any(not state.suspicions.suspects(i) for i in alive):
      state.finish(events_lib.End(state.cause))
    yield events_lib.Sleep(_RETRY_SECS)
