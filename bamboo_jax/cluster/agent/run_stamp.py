"""Which run this is: the store and the workdir must say the same.

The first agent draws a stamp, and writes it into the folder and into the
store. So a store that has lost its data, and a folder that another run uses,
are detected and rejected. Members whose store has lost its data train on; the
oldest live one restores the store, unless the folder has a newer view.

   leader                         store, empty          other members
     |-- 1 same stamp? ----------->|<---------------------|
     |   2 waits; no newer view arrives, nor is in the folder
     |-- 3 stamp, config, numbers, view ------>|
     |                                |<-- 4 same view? Then accepted.
"""

from bamboo_jax import base
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import events as events_lib, membership, selection, state as state_lib
from bamboo_jax.cluster.store import (
    etcd as etcd_lib,
    fence as fence_lib,
    registry as registry_lib,
    tenure,
)

_Registry = registry_lib.Registry
_POLL_SECS = 0.1
_HANDOVER_SECS = 2.0


def find(state: state_lib.AgentState) -> events_lib.Flow:
  """Waits until the stamp of the run is known; draws one for a new run.

  Raises `ValueError` if another run uses the workdir, or if the other nodes of
  this run use another workdir; `OSError` without a store.
  """
  limits = state.options.limits
  begun_secs = since_secs = state.now
  last = -1
  while True:
    ask = state.ask(events_lib.store(_Registry.stamp), fatal=etcd_lib.NoEtcdError)
    there = yield from ask
    claim, beat = yield from state.ask(events_lib.CallFence("read"))
    if there and claim is not None and there == claim.stamp:
      break
    if beat != last:
      last, since_secs = beat, state.now
    is_left = claim and state.now >= since_secs + limits.most_silence_secs
    # The folder may merely hang for its members.
    if is_left and not (yield from _is_over(state, claim)):
      since_secs = state.now
      continue
    if is_left and there:
      yield from state.ask(events_lib.CallFence("replace", (there,)))
      continue
    mine = state.incarnation
    if is_left or not (claim or there):
      create = state.ask(events_lib.CallFence("create", (mine,)))
      if claim or (yield from create):
        begin = events_lib.store(_Registry.begin, mine)
        yield from state.ask(begin)
        continue
    elif state.now >= begun_secs + limits.start_silence_secs:
      lives = claim is None or state.now < since_secs + fence_lib.BEAT_SECS
      if lives:  # Else that run may be over, and another one starting.
        _refuse(state.options, there, claim)
    yield events_lib.Sleep(_POLL_SECS)
  state.stamp = there
  yield from state.ask(events_lib.store(_Registry.trust, there))


def _refuse(options: state_lib.AgentOptions, there: str, claim: fence_lib.Claim | None) -> None:
  where, run = options.workdir, f"run {options.run!r}"
  if claim is not None and tenure.is_alone(claim):
    raise ValueError(f"bamboo train is running in {where}; end it, or name another " "--workdir.")
  if not there:
    raise OSError(f"There is no {run} in etcd, but one is running in {where}.")
  raise ValueError(
      f"Another run than {run} is running in {where}."
      if claim
      else f"{where} must be the folder in which all nodes of {run} work; "
      "another run needs another --run."
  )


def _is_over(state: state_lib.AgentState, claim: fence_lib.Claim) -> events_lib.Flow:
  """Asks the members of a run in its views; returns whether none is left.

  As in `run_over`, the next view is either an answer or one without members.
  """
  ask = lambda method, *args: state.ask(events_lib.CallFence(method, (claim.stamp, *args)))
  found = yield from ask("views_after")
  newest = found[-1] if found else views.EMPTY
  is_new = tenure.is_alone(claim) and not newest.number
  may_live = is_new or newest.members or newest.words
  if may_live and not newest.is_ask:
    asked = views.ask(newest, state.options.name)
    newest = yield from ask("claim_view", asked)
  if newest.is_ask:
    yield events_lib.Sleep(state.options.limits.most_silence_secs)
    newest = yield from ask("claim_view", views.over(newest))
  return not (newest.members or newest.words)


def begin_life(state: state_lib.AgentState, epoch: base.ViewId) -> events_lib.Flow:
  """Fences members of earlier lives of the run, which may be cut off."""
  claim = fence_lib.Claim(state.stamp, epoch)
  yield from state.until_ok(_fence, "begin", claim)


def beat(state: state_lib.AgentState) -> events_lib.Flow:
  """Updates the time of the fence, the sign that members are alive.

  The first reachable member does it for all, independently of the store.
  """
  roster = state.roster
  while True:
    yield events_lib.Sleep(fence_lib.BEAT_SECS / 4)
    over = roster.gone.keys() | roster.done
    first = next(
        (i for i in roster.incarnations if i not in over and not state.suspicions.suspects(i)),
        state.incarnation,
    )
    is_first = roster.is_at_work and first == state.incarnation
    if is_first or not roster.view.members:
      try:
        yield events_lib.CallFence("beat", (state.stamp,))
      except OSError as error:
        state.warn(f"{error}")


def look(state: state_lib.AgentState) -> events_lib.Flow:
  """Returns the run as the store has it, a `registry.Sight`.

  Raises `OSError` if the store has lost the run; restores it if possible.
  """
  sight = events_lib.store(_Registry.look, state.roster.view.number)
  try:
    if state.lost_secs is None:
      return (yield sight)
  except etcd_lib.LostStoreError as error:
    state.warn(f"{error} Training goes on.")
    state.lost_secs = state.now
  there, view = yield events_lib.store(_Registry.find_lost)
  known, newest = state.roster.view, view or views.EMPTY
  if there == state.stamp and (newest == known or newest.number > known.number):
    state.lost_secs = None
    return (yield sight)
  if not known.number or known.members and not state.roster.is_member:
    state.restart("etcd has lost the data of the run")
  elif there in ("", state.stamp):
    if _may_restore(state):
      yield from membership.read_made(state)  # Others may have a newer view.
      if state.roster.view is known and _may_restore(state):
        yield events_lib.store(
            _Registry.restore,
            *(state.stamp, state.options.config),
            *(state.roster.view, state.roster.most_number + 1),
        )
  elif state.now >= state.lost_secs + state.options.limits.start_silence_secs:
    claim, _ = yield from state.until_ok(_fence, "read")
    if claim is not None and claim.stamp == there:  # A member restored it.
      state.restart("the run has restarted")
    why = "another run has taken its place in etcd"
    state.finish(events_lib.End(why))  # Unless this agent restarts.
  raise OSError("The store is not to be trusted.")


def _find_left(state: state_lib.AgentState) -> list[str]:
  """Returns the members not to be removed; this agent if there are no members.

  Agents without a worker are among them: perhaps none has one.
  """
  members = state.roster.incarnations
  if not members:
    return [state.incarnation]
  lost = selection.find_unreachable(state, members)
  return [] if lost is None else [i for i in members if i not in lost]


def _may_restore(state: state_lib.AgentState) -> bool:
  """Whether this agent may restore the store now.

  The oldest remaining one goes first, the others in case it cannot reach it.
  """
  left, me = _find_left(state), state.incarnation
  if me not in left or state.lost_secs is None:
    return False
  return state.now >= state.lost_secs + _HANDOVER_SECS * left.index(me)


def _fence(method: str, *args: fence_lib.Claim) -> events_lib.Flow:
  return (yield events_lib.CallFence(method, args))
