"""Which nodes the next view removes, admits, or starts with; pure.

Decided by this agent alone, from what it knows by now.
"""

from collections.abc import Collection
import enum

from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import links, state as state_lib

_SETTLE_SECS = 2.0  # Restarting nodes wait for each other.


def find_lost(state: state_lib.AgentState) -> dict[str, str] | None:
  """Returns nodes to remove, with reasons; None if others must decide."""
  roster, me = state.roster, state.incarnation
  members = roster.incarnations
  if me not in members or me in roster.gone or me in roster.done:
    return None
  lost = {i: roster.gone[i] for i in members if i in roster.gone}
  over = lost.keys() | roster.done
  left = [i for i in members if i not in over]
  if any(links.is_trying(state, i) for i in left):
    return None  # Simultaneous deaths belong to one view.
  quiet = state.watch.find_quiet(state.now)
  found = find_unreachable(state, left, quiet=quiet, secs=0.0)
  if found is None:
    return None
  lost |= found
  if lost:  # Finished nodes take no part in another view.
    lost |= {i: "it is done" for i in members if i in roster.done}
  return lost


def find_unreachable(
    state: state_lib.AgentState,
    members: list[str],
    *,
    quiet: Collection[str] = (),
    secs: float | None = None,
) -> dict[str, str] | None:
  """Returns unreachable members; None if this one seems cut off itself.

  If it has seemed so for `secs`, it returns those that it cannot reach.
  """
  me = state.incarnation
  found = state.suspicions.explain(members, now=state.awake, quiet=quiet)
  if me not in found:
    return found
  if secs is None:
    secs = state.options.limits.most_silence_secs
  if _suspected_secs(state, members) < secs:
    return None
  edges = state.suspicions.of(me)
  return {i: edges[i].reason for i in members if i in edges}


def _suspected_secs(state: state_lib.AgentState, members: Collection[str]) -> float:
  """Returns for how long this agent has suspected any of `members`."""
  edges = state.suspicions.of(state.incarnation)
  firsts = [edges[i].first_secs for i in members if i in edges]
  return state.awake - min(firsts, default=state.awake)


class Uncertainty(enum.IntEnum):
  """Whether this agent may be cut off, rather than those that it removes."""

  NONE = 0
  SMALL = 1  # They refuse connections, but not all on several hosts, or have ended.
  GREAT = 2


def doubt(state: state_lib.AgentState, view: views.View) -> Uncertainty:
  """Returns whether members that a due view removes may be alive.

  Not if they were asked in vain, nor if it has suspected one for so long that
  all would stand still.
  """
  roster, limits = state.roster, state.options.limits
  members = roster.incarnations
  lost = [i for i in members if not view.find(i)]
  left = [i for i in members if i not in roster.gone and i not in roster.done]
  in_vain = {*roster.view.asked} if state.patient_for >= view.number else ()
  is_walled_off = _is_walled_off(state, left)
  unsure = [
      m.incarnation
      for m in roster.view.members
      if m.incarnation in lost
      and m.incarnation in left
      and m.number not in in_vain
      and (is_walled_off or not state.suspicions.is_refused(m.incarnation))
  ]
  part = views.part_that_stays(roster.view, view)
  seems_cut_off = state.incarnation in state.suspicions.explain(
      left, now=state.awake, quiet=state.watch.find_quiet(state.now)
  )
  most_secs = limits.most_silence_secs + limits.no_progress_secs
  if unsure and _suspected_secs(state, unsure) < most_secs:
    return Uncertainty.GREAT if part <= 0.5 or seems_cut_off else Uncertainty.NONE
  return Uncertainty.SMALL if part < 0.5 else Uncertainty.NONE


def _is_walled_off(state: state_lib.AgentState, members: Collection[str]) -> bool:
  """Returns whether members on several hosts refuse this agent, and none accepts it.

  Then a firewall at this host may refuse for them. On this host only processes
  that are gone do.
  """
  others = [
      m for i in members if (m := state.roster.view.find(i)) and m.host != state.roster.own.host
  ]
  are_refused = all(state.suspicions.is_refused(m.incarnation) for m in others)
  return are_refused and len({m.host for m in others}) > 1


def find_newcomers(state: state_lib.AgentState) -> list[views.Member]:
  """Returns nodes to admit: joining, ready, and connected to all members."""
  roster, suspicions = state.roster, state.suspicions
  members = {*roster.incarnations}
  if members & roster.done:
    return []  # The run is over.
  joining: list[str] = []
  for i, ready in roster.ready.items():
    if (
        ready.origin is None
        and i in roster.known
        and i not in members
        and i not in roster.gone
        and not suspicions.of(i).keys() & members
        and not any(i in suspicions.of(m) for m in members)
        and not any(i in suspicions.of(other) or other in suspicions.of(i) for other in joining)
    ):
      joining.append(i)
  return [roster.known[i] for i in joining]


def find_first(state: state_lib.AgentState) -> list[views.Member] | None:
  """Returns the first members; None while more nodes may join."""
  roster, limits = state.roster, state.options.limits
  origin = roster.view.number
  if state.incarnation not in roster.ready or state.origin != origin:
    return None
  joining = {
      i: roster.known[i]
      for i, ready in roster.ready.items()
      if ready.origin == origin and i in roster.known and i not in roster.gone
  }
  order = [m.incarnation for m in sorted(joining.values())]
  lost = {*state.suspicions.explain(order, now=state.awake)}
  waited_secs = state.now - state.ready_secs
  is_late = waited_secs >= limits.gather_secs
  if is_late:  # Regardless of which end is cut off.
    lost |= state.suspicions.of(state.incarnation).keys()
    lost.discard(state.incarnation)
  elif state.incarnation in lost:
    return None  # The others start without this one.
  for i in joining.keys() & lost:
    del joining[i]
  is_unclear = any(joining.keys() & state.suspicions.of(i).keys() for i in joining)
  are_all = (
      (origin > roster.view.run or state.is_short)
      and waited_secs >= _SETTLE_SECS
      and (roster.registered or set()) <= joining.keys() | state.unreachable.keys()
  )
  is_enough = len(joining) >= state.options.num_nodes
  is_due = (is_enough or are_all) and not is_unclear
  return list(joining.values()) if is_due or is_late else None
