"""What an agent knows of the others, and which nodes the next view removes or admits; pure.

Agents are named by their incarnations. This agent decides alone, from what it
knows by now; `now` is its clock.
"""

from collections.abc import Collection
import enum
from typing import Any

from bamboo_jax import base, config as config_lib
from bamboo_jax.cluster import messages, views
from bamboo_jax.cluster.agent import suspicion as suspicion_lib, watch as watch_lib

_NUM_OLD = 8
_TRY_SECS = 0.1  # A host refuses a connection within this time.
SETTLE_SECS = 2.0  # Restarting nodes wait for each other.


class Uncertainty(enum.IntEnum):
  """Whether this agent may be cut off, rather than those that it removes."""

  NONE = 0
  SMALL = 1  # They refuse connections, but not all on several hosts, or have ended.
  GREAT = 2


class Roster:
  """All known agents, this one (`me`) included, and the view they are in.

  Attributes:
    origin: The view without members from which the worker begins, 0 for the
      beginning of the run; None if it joins others, or before it is known.
    is_short: Whether some first nodes did not join in time.
    patient_for: Number of the last view that was put off.
    ready_secs: When the worker had compiled.
    unreachable: Agents that could not be reached when last tried.
    dialed_secs: When each was last dialed.
  """

  def __init__(self, incarnation: str, limits: config_lib.ClusterSection, num_nodes: int) -> None:
    self.incarnation, self._limits, self._num_nodes = incarnation, limits, num_nodes
    self.me: views.Member | None = None
    self.view = views.EMPTY
    self.members: list[str] = []  # Of the view, in order.
    self.watch = watch_lib.HeartbeatWatch(limits)
    self.suspicions = suspicion_lib.Suspicions(incarnation)
    self.known: dict[str, views.Member] = {}
    self.ready: dict[str, base.ViewId | None] = {}  # And from which view, see `origin`.
    self.gone: dict[str, str] = {}  # Why they left or died.
    self.left: set[str] = set()  # Removed by a view.
    self.done: set[str] = set()
    self.noticed: dict[str, str] = {}  # Why they will be preempted.
    # Those that show their address, None before the first look.
    self.registered: set[str] | None = None
    self.connected: set[str] = set()
    self.unreachable: dict[str, messages.Suspect] = {}
    self.dialed_secs: dict[str, float] = {}
    self.origin: base.ViewId | None = None
    self.is_short = False
    self.patient_for, self.ready_secs = 0, 0.0
    self._views: dict[base.ViewId, views.View] = {}

  @property
  def own(self) -> views.Member:
    """This agent, once it has a number."""
    assert self.me is not None
    return self.me

  @property
  def is_member(self) -> bool:
    return bool(self.view.find(self.incarnation))

  @property
  def is_at_work(self) -> bool:
    """Whether this agent is a member that has a worker."""
    return self.is_member and self.incarnation not in self.gone

  @property
  def living(self) -> list[str]:
    """Members that have not said that they are gone."""
    return [i for i in self.members if i not in self.gone]

  @property
  def training(self) -> list[str]:
    """Those that have not finished the run either."""
    return [i for i in self.living if i not in self.done]

  def note(self, incarnation: str, said: messages.Say, now: float) -> None:
    """Records what an agent says of itself, and whom it suspects."""
    if said.is_ready:
      self.ready[incarnation] = said.origin
    if said.notice:
      self.noticed[incarnation] = said.notice
    if said.gone:
      self.gone[incarnation] = said.gone
    if said.is_done:
      self.done.add(incarnation)
    there = [s for s in said.suspects if s.incarnation not in self.left]
    self.suspicions.note(incarnation, there, count=said.count, now=self.watch.awake(now))

  def adopt(self, view: views.View) -> None:
    self.view = self._views[view.number] = view
    self.members = [m.incarnation for m in view.members]

  def find_view(self, number: base.ViewId) -> views.View:
    """Returns a view by its number; one without members if it is unknown."""
    return self._views.get(number, views.EMPTY)

  def recent_views(self) -> list[views.View]:
    """Returns the views that other agents may have missed, in order."""
    return [v for _, v in sorted(self._views.items())]

  def drop_older(self, number: base.ViewId, needed: Collection[base.ViewId]) -> None:
    """Forgets older views, but for a few that other agents may have missed, and the `needed`."""
    for old in [n for n in self._views if n < number - _NUM_OLD and n not in needed]:
      del self._views[old]

  def drop(self, incarnation: str) -> None:
    """Forgets an agent until it connects again."""
    tables: list[dict[str, Any]] = [self.known, self.ready, self.noticed]
    for table in (*tables, self.unreachable, self.dialed_secs):
      table.pop(incarnation, None)
    self.connected.discard(incarnation)
    self.watch.drop(incarnation)
    self.suspicions.drop(incarnation)

  # Decisions.

  def find_lost(self, now: float) -> dict[str, str] | None:
    """Returns nodes to remove, with reasons; None if others must decide."""
    if not self.is_at_work or self.incarnation in self.done:
      return None
    lost = {i: self.gone[i] for i in self.members if i in self.gone}
    left = self.training
    if any(self._is_trying(i, now) for i in left):
      return None  # Simultaneous deaths belong to one view.
    found = self._explain(left, now)
    if self.incarnation in found:  # It seems cut off itself.
      found = self.suspicions.find_due(left, now=self.watch.awake(now))
    lost |= found
    if lost:  # Finished nodes take no part in another view.
      lost |= {i: "it is done" for i in self.members if i in self.done}
    return lost

  def doubt(self, view: views.View, now: float) -> Uncertainty:
    """Returns whether members that a due view removes may be alive.

    Not if they were asked in vain, nor if this agent has suspected one for so
    long that all would stand still.
    """
    left = self.training
    in_vain = {*self.view.asked} if self.patient_for >= view.number else ()
    is_walled_off = self._is_walled_off(left, now)
    unsure = [
        m.incarnation
        for m in self.view.members
        if not view.find(m.incarnation)
        and m.incarnation in left
        and m.number not in in_vain
        and (is_walled_off or not self.suspicions.is_refused(m.incarnation))
    ]
    part = views.part_that_stays(self.view, view)
    edges = self.suspicions.of(self.incarnation)
    awake = self.watch.awake(now)
    first_secs = min((edges[i].first_secs for i in unsure if i in edges), default=awake)
    most_secs = self._limits.most_silence_secs + self._limits.no_progress_secs
    if unsure and awake - first_secs < most_secs:
      seems_cut_off = is_walled_off or self.incarnation in self._explain(left, now)
      return Uncertainty.GREAT if part <= 0.5 or seems_cut_off else Uncertainty.NONE
    return Uncertainty.SMALL if part < 0.5 else Uncertainty.NONE

  def find_newcomers(self) -> list[views.Member]:
    """Returns nodes to admit: joining, ready, and connected to all members."""
    members, of = {*self.members}, self.suspicions.of
    if members & self.done:
      return []  # The run is over.
    joining: list[str] = []
    for i, origin in self.ready.items():
      if (
          origin is None
          and i in self.known
          and i not in members
          and i not in self.gone
          and not any(i in of(other) or other in of(i) for other in (*members, *joining))
      ):
        joining.append(i)
    return [self.known[i] for i in joining]

  def find_first(self, now: float) -> list[views.Member] | None:
    """Returns the first members; None while more nodes may join."""
    origin = self.view.number
    if self.incarnation not in self.ready or self.origin != origin:
      return None
    joining = {
        i: self.known[i]
        for i, ready in self.ready.items()
        if ready == origin and i in self.known and i not in self.gone
    }
    waited_secs = now - self.ready_secs
    is_late = waited_secs >= self._limits.gather_secs
    are_all = (origin > self.view.run or self.is_short) and waited_secs >= SETTLE_SECS
    if not (len(joining) >= self._num_nodes or are_all or is_late):
      return None  # Each of many agents looks whenever another is ready.
    order = [m.incarnation for m in sorted(joining.values())]
    lost = {*self.suspicions.explain(order, now=self.watch.awake(now))}
    if is_late:  # Regardless of which end is cut off.
      lost |= self.suspicions.of(self.incarnation).keys()
      lost.discard(self.incarnation)
    elif self.incarnation in lost:
      return None  # The others start without this one.
    for i in joining.keys() & lost:
      del joining[i]
    is_unclear = any(joining.keys() & self.suspicions.of(i).keys() for i in joining)
    are_all &= (self.registered or set()) <= joining.keys() | self.unreachable.keys()
    is_due = (len(joining) >= self._num_nodes or are_all) and not is_unclear
    return list(joining.values()) if is_due or is_late else None

  def _explain(self, members: list[str], now: float) -> dict[str, str]:
    if self.suspicions.are_none:  # Most of the time.
      return {}
    quiet = self.watch.find_quiet(now)
    return self.suspicions.explain(members, now=self.watch.awake(now), quiet=quiet)

  def _is_trying(self, incarnation: str, now: float) -> bool:
    """Whether a reconnect is under way that has neither succeeded nor failed."""
    if incarnation in self.connected or incarnation in self.unreachable:
      return False
    return now < self.dialed_secs.get(incarnation, float("-inf")) + _TRY_SECS

  def _is_walled_off(self, members: Collection[str], now: float) -> bool:
    """Returns whether this agent hears none of the members on several other hosts.

    Then a firewall at this host may refuse for them. On this host only processes
    that are gone do.
    """
    others = [m for i in members if (m := self.view.find(i)) and m.host != self.own.host]
    unheard = self.suspicions.of(self.incarnation).keys() | {*self.watch.find_quiet(now)}
    return unheard.issuperset(m.incarnation for m in others) and len({m.host for m in others}) > 1
