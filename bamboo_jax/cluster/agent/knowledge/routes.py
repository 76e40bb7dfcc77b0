"""Routes: in a large cluster agents connect to some others, and reach all.

Numbers assign agents to the cells of a grid, several to each. An agent connects
to those **near** it, in its row and in its column. For any other agent, one at
a crossing of their rows and columns forwards its messages, so of n agents each
has about 2 sqrt(3 n) connections.

       c0    c1                S                   R                   T
   r0  S --- R                 |-- 1 "wants" T --->|                   |
       |     |                 |<- 2 "passes" -----|-- 2 "came" S ---->|
   r1  Q --- T                 |-- 3 "via" T ----->|-- "from" S ------>|
                               |<- 4 "stops" ------|<-- closed --------x
   S and T are not near.       |-- 5 "wants" T --> Q                   |
   R or Q forward.             |-- 6 or connects itself -------------->|

Heartbeats count between connected agents only, as the silence of a forwarded
one may be the fault of another agent. With a width of 1 all are near.
"""

from collections.abc import Iterable
import dataclasses
import math
from typing import Any, NamedTuple

from bamboo_jax.cluster import messages
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent.knowledge import roster as roster_lib

_ANSWER_SECS = 2.0  # Time limit of an agent that is asked to forward.
_MOST_TRIES = 2  # Then an agent connects itself.
_PER_CELL = 3  # So that one is left to forward when others die.


def find_width(num_nodes: int, mesh_nodes: int) -> int:
  """Returns rows, and columns, of the grid; 1 if all are to be connected."""
  if num_nodes <= mesh_nodes:
    return 1
  return max(2, math.isqrt(num_nodes // _PER_CELL))


@dataclasses.dataclass(frozen=True)
class _Try:
  """The relay that was asked, and when; None while there is none to ask."""

  relay: str | None
  since_secs: float
  tried: frozenset[str] = frozenset()


class Change(NamedTuple):
  """The effect of a lost route: actions, and targets to connect to again."""

  actions: list[Any]
  lost: list[str]


class Reach(NamedTuple):
  """Targets that a relay forwards to from now on, and those it gave up."""

  gained: list[str]
  lost: list[str]


class Routes:
  """How one agent reaches the others, by incarnation; returns actions.

  Attributes:
    direct: Agents with an established connection from this one, in order.
  """

  def __init__(self, roster: roster_lib.Roster, width: int) -> None:
    self.width = width
    self.direct: dict[str, None] = {}
    self._roster = roster
    self._heard: set[str] = set()  # Agents whose last message came directly.
    self._near: dict[tuple[int, int], dict[str, None]] = {}  # By cell.
    self._failed: set[str] = set()  # Near, and could not be connected to.
    self._by: dict[str, str] = {}  # Relays, by target.
    self._asked: dict[str, _Try] = {}
    self._refused: set[str] = set()  # To be seen by this agent itself.
    self._users: dict[str, dict[str, None]] = {}  # Sources, by target.

  @property
  def reached(self) -> set[str]:
    """Agents that receive the messages of this one."""
    return self.direct.keys() | self._by.keys()

  def reaches(self, incarnation: str) -> bool:
    """Whether an agent is among `reached`."""
    return incarnation in self.direct or incarnation in self._by

  # What this agent wants.

  def dial(self, member: views.Member, now: float) -> list[Any]:
    """Connects to another agent, or asks a relay to forward to it."""
    if not self.is_near(member):
      return self._ask({member.incarnation: frozenset()}, now)
    near = self._near.setdefault(self._cell(member), {})
    near[member.incarnation] = None
    return [events_lib.Dial(member)]

  def send(self, message: Any, to: Iterable[str] | None) -> list[Any]:
    """Sends to some agents, by default to all."""
    if self.width == 1:
      return [events_lib.Send(message, None if to is None else tuple(to))]
    direct, by = [], {}
    for target in [*self.direct, *self._by] if to is None else to:
      if target in self.direct:
        direct.append(target)
      elif (relay := self._by.get(target)) is not None:
        by.setdefault(relay, []).append(target)
    sends = [events_lib.Send(message, tuple(direct))] if direct else []
    for relay, targets in by.items():
      via = messages.Via(tuple(targets), message)
      sends.append(events_lib.Send(via, (relay,)))
    return sends

  def tick(self, now: float) -> list[Any]:
    """Asks other relays where one has not answered."""
    again = {}
    for target, last in self._asked.items():
      is_late = now >= last.since_secs + _ANSWER_SECS
      if last.relay is None and not is_late:
        member = self._roster.known[target]
        if any(r in self.direct for r in self._relays(member, last.tried)):
          again[target] = last.tried
      elif is_late:  # Unreachable ones do not count.
        again[target] = last.tried | {last.relay or target}
    return self._ask(again, now, waits=False)

  def _ask(
      self, tried: dict[str, frozenset[str]], now: float, *, waits: bool = True
  ) -> list[Any]:
    """Asks one not `tried` for each target; connects if there is none."""
    is_early = not self._roster.view.members  # Some may not have been met.
    actions: list[Any] = []
    wanted: dict[str, list[str]] = {}
    for target, before in tried.items():
      member = self._roster.known[target]
      relays = self._relays(member, before)
      if len(before) >= _MOST_TRIES or target in self._refused:
        relays = []
      there = [r for r in relays if r in self.direct]
      if there:
        relay = there[self._roster.me.number % len(there)]
        wanted.setdefault(relay, []).append(target)
        self._asked[target] = _Try(relay, now, before)
      elif waits and (relays or is_early and not before):
        self._asked[target] = _Try(None, now, before)
      else:
        self._asked.pop(target, None)
        self._refused.discard(target)
        actions.append(events_lib.Dial(member))
    for relay, targets in wanted.items():
      message = messages.Wants(tuple(targets))
      actions.append(events_lib.Send(message, (relay,)))
    return actions

  def _relays(self, member: views.Member, tried: frozenset[str]) -> list[str]:
    """Returns possible relays to a member: of one cell, unless it is empty."""
    (row, column), (my_row, my_column) = map(
        self._cell, (member, self._roster.me)
    )
    out = self._failed | tried
    for cell in ((my_row, column), (row, my_column)):
      if found := [i for i in self._near.get(cell, ()) if i not in out]:
        return found
    return []

  # Near agents.

  def _cell(self, member: views.Member) -> tuple[int, int]:
    return member.number // self.width % self.width, member.number % self.width

  def is_near(self, member: views.Member) -> bool:
    """Whether this agent is to be connected to a member at all times."""
    row, column = self._cell(member)
    my_row, my_column = self._cell(self._roster.me)
    return row == my_row or column == my_column

  def rings(self) -> list[list[str]]:
    """Returns groups of mutually near members that contain this one."""
    members = self._roster.view.members
    if self.width == 1:
      return [[m.incarnation for m in members]]
    row, column = self._cell(self._roster.me)
    cells = [(m.incarnation, self._cell(m)) for m in members]
    return [
        [i for i, (r, _) in cells if r == row],
        [i for i, (_, c) in cells if c == column],
    ]

  def note(self, incarnation: str, *, is_passed_on: bool) -> None:
    """Records whether a message of another agent was forwarded."""
    if self.width > 1:
      (self._heard.discard if is_passed_on else self._heard.add)(incarnation)

  def is_heard(self, member: views.Member) -> bool:
    """Whether silence of a member is evidence about that member itself."""
    return self.is_near(member) or member.incarnation in self._heard

  # Changes of connections.

  def reach(self, incarnation: str) -> list[Any]:
    """Handles an established connection of this agent."""
    self.direct[incarnation] = None
    self._failed.discard(incarnation)
    if self.width == 1:
      return []
    self._by.pop(incarnation, None)
    self._asked.pop(incarnation, None)
    to = (incarnation,)
    actions: list[Any] = []
    if users := tuple(self._users.get(incarnation, ())):
      known = self._roster.known
      came = tuple(known[u] for u in users if u in known)
      actions += [
          events_lib.Send(messages.Came(came), to),
          events_lib.Send(messages.Passes(to), users),
      ]
    targets = [t for t, users in self._users.items() if incarnation in users]
    passes = messages.Passes(
        tuple(t for t in targets if t in self.direct), are_all=True
    )
    return [*actions, events_lib.Send(passes, to)]

  def close(self, incarnation: str, now: float) -> Change:
    """Handles a closed connection; it will be retried."""
    self.direct.pop(incarnation, None)
    lost = [t for t, relay in self._by.items() if relay == incarnation]
    stops = messages.Stops((*lost, *self._asked))
    return self.stop(incarnation, stops, now)

  def fail(self, incarnation: str, now: float, *, is_refused: bool) -> Change:
    """Handles a connection that could not be made."""
    self._failed.add(incarnation)
    actions, lost = self.close(incarnation, now)
    if users := self._users.pop(incarnation, None):
      stops = messages.Stops((incarnation,), is_refused)
      actions.append(events_lib.Send(stops, tuple(users)))
    return Change(actions, lost)

  def drop(self, incarnation: str, now: float) -> Change:
    """Forgets an agent; other relays have to replace it."""
    for table in (
        *(self._by, self._asked, *self._users.values(), *self._near.values()),
    ):
      table.pop(incarnation, None)
    # Others may know the agent, and want to restart with it.
    actions, lost = self.fail(incarnation, now, is_refused=False)
    for table in (self._failed, self._heard, self._refused):
      table.discard(incarnation)
    return Change(actions, lost)

  # Messages of relays, and of agents that need one.

  def want(self, source: str, targets: Iterable[str]) -> list[Any]:
    """Forwards for a source from now on, or reports that it cannot."""
    failed = tuple(t for t in targets if t in self._failed)
    for target in targets:
      if target not in self._failed:
        self._users.setdefault(target, {})[source] = None
    there = tuple(t for t in targets if t in self.direct)
    actions: list[Any] = []
    if failed:
      actions.append(events_lib.Send(messages.Stops(failed), (source,)))
    if there and (member := self._roster.known.get(source)) is not None:
      actions += [
          events_lib.Send(messages.Came((member,)), there),
          events_lib.Send(messages.Passes(there), (source,)),
      ]
    return actions

  def pass_on(self, source: str, via: messages.Via) -> list[Any]:
    """Forwards a message to connected agents."""
    to = tuple(t for t in via.targets if t in self.direct)
    passed = messages.From(source, via.message)
    return [events_lib.Send(passed, to)] if to else []

  def take(self, relay: str, passes: messages.Passes) -> Reach:
    """Handles a report of a relay; returns the targets it concerns."""
    reached = []
    for target in passes.targets:
      last = self._asked.get(target)
      if last is not None and last.relay == relay:
        del self._asked[target]
        self._by[target] = relay
        reached.append(target)
      elif self._by.get(target) == relay and not passes.are_all:
        reached.append(target)
    gone = []
    if passes.are_all:
      left = {*passes.targets}
      gone = [t for t, r in self._by.items() if r == relay and t not in left]
      for target in gone:
        del self._by[target]
    return Reach(reached, gone)

  def stop(self, relay: str, stops: messages.Stops, now: float) -> Change:
    """Handles a relay that does not forward to some targets."""
    lost, again = [], {}
    for target in stops.targets:
      last = self._asked.get(target)
      if self._by.get(target) == relay:
        del self._by[target]
        lost.append(target)
      elif last is not None and last.relay == relay:
        again[target] = last.tried | {relay}
      else:
        continue
      if stops.are_refused:
        self._refused.add(target)
    return Change(self._ask(again, now), lost)
