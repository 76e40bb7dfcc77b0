r"""Which members suspect which, and which to remove for it; pure.

A suspicion is an edge from one member to another: no connection, or no
heartbeat. A broken link is one edge, or two; a member that is cut off has an
edge to every other one. So the smallest set of members that covers all edges (a
vertex cover) explains the failures: the others can all reach each other.

          n1 --x-- n2                n0   x     n1
           |   \ /  |                   x   x    |     n0 covers three edges:
           |   / \  |                 x       x  |     it is the one cut off
          n3 ------ n4                   n3 --- n2
   one link: one of its ends
"""

import collections
from collections.abc import Collection, Mapping
import dataclasses
import itertools
import math

from bamboo_jax.cluster import messages

# An edge waits for edges of others. If most members are refused by a node there
# is no wait; if a single one is, a firewall may be the cause, and only another
# attempt shows that it is over.
_GRACE_SECS = 1.0
_CERTAIN_GRACE_SECS = 3.0
# Once a link is mended, the next one may take as long as a busy machine is away.
_MENDED_SECS = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
  """A suspicion of one member.

  Attributes:
    first_secs: When this agent learned of it.
  """

  reason: str
  is_certain: bool
  first_secs: float


class Suspicions:
  """All suspicions that one agent knows; `me` is its incarnation."""

  def __init__(self, me: str) -> None:
    self._me = me
    self._edges: dict[str, dict[str, Edge]] = {}  # By accuser and accused.
    # Number of certain accusers, by accused.
    self._num_certain: collections.Counter[str] = collections.Counter()
    # No edge is due before this time: with a thousand agents and a hundred
    # deaths, each agent receives a thousand reports.
    self._due_secs = math.inf
    # When this agent, and others, were away last; when a link of each was mended.
    self._wait_secs = -math.inf
    self._away_secs: dict[str, float] = {}
    self._mended_secs: dict[str, float] = {}
    self._counts: dict[str, int] = {}

  @property
  def are_none(self) -> bool:
    return not any(self._edges.values())

  def of(self, accuser: str) -> Mapping[str, Edge]:
    return self._edges.get(accuser, {})

  def suspects(self, accused: str) -> bool:
    return accused in self.of(self._me)

  def note(
      self, accuser: str, suspects: Collection[messages.Suspect], *, count: int, now: float
  ) -> None:
    """Records all suspicions of an agent.

    Reports may arrive out of order; one with a lower `count` than before is
    ignored. If a suspicion is withdrawn, the network may be recovering, so the
    grace periods of all other suspicions of both agents start again.
    """
    if count <= self._counts.get(accuser, -1):
      return
    self._counts[accuser] = count
    before = self.of(accuser)
    after: dict[str, Edge] = {}
    for s in suspects:
      edge = before.get(s.incarnation)
      if edge is None or edge.is_certain != s.is_certain:
        edge = Edge(s.reason, s.is_certain, now)
        self._due_secs = min(self._due_secs, now + _grace(edge))
      after[s.incarnation] = dataclasses.replace(edge, reason=s.reason)
    self._edges[accuser] = after
    self._num_certain.subtract(whom for whom, edge in before.items() if edge.is_certain)
    self._num_certain.update(whom for whom, edge in after.items() if edge.is_certain)
    if mended := before.keys() - after.keys():
      self._mended_secs |= dict.fromkeys({accuser, *mended}, now)

  def wait_again(self, now: float, *, who: str = "") -> None:
    """Has all suspicions wait once more, or those by and of an agent.

    One that was suspended does not know which links work again.
    """
    if who:
      self._away_secs[who] = now
    elif now >= self._wait_secs + _GRACE_SECS:  # Or an agent that is away again and again waits on.
      self._wait_secs = now

  def drop(self, incarnation: str) -> None:
    """Forgets an agent once it is removed."""
    for whom, edge in self.of(incarnation).items():
      self._num_certain[whom] -= edge.is_certain
    for table in (self._edges, self._num_certain, self._away_secs, self._mended_secs):
      table.pop(incarnation, None)
    for edges in self._edges.values():
      edges.pop(incarnation, None)

  def explain(
      self, members: Collection[str], *, now: float, quiet: Collection[str] = ()
  ) -> dict[str, str]:
    """Returns members to remove, with reasons, in the order of `members`.

    Contains this agent if it is the one cut off.

    Args:
      members: Sorted by number; of two ends of a link the later one is removed.
      quiet: Members whose heartbeats are overdue here: either this agent will
        suspect them soon, or it is itself cut off. Suspicions by or of them are
        not acted on until then, as they may only be busy.
    """
    sure = self._find_sure(members, now, quiet)
    if not self._is_due(now):
      return {m: self._reason(m) for m in members if m in sure}
    left = [m for m in members if m not in sure]
    are_left = {*left}
    edges = {
        (by, whom): edge
        for by, found in self._edges.items()
        if by in are_left and (by == self._me or not self.suspects(by))
        for whom, edge in found.items()
        if whom in are_left
    }
    out = set(sure)
    old = {ends for ends, edge in edges.items() if now >= self._find_due(*ends, edge)}
    unclear = {m for m in quiet if not self.suspects(m)}
    due = {ends for ends in old if unclear.isdisjoint(ends)}
    if due:
      own = {(self._me, w) for w in quiet if w in are_left}
      suspected = {w for w in left if self.suspects(w)}
      # Young edges, if they last, show the culprit of an old one: then
      # both covers agree.
      young = {frozenset(ends) for ends in edges.keys() - old}
      firm = old | {ends for ends in own if frozenset(ends) not in young}
      known = edges.keys() | own
      cover = _cover(known, left, suspected)
      # A member that is cut off has outdated knowledge of the others. One that hears none, and
      # does not suspect all yet, may have been cut off again.
      hears_none = all(m == self._me or m in quiet or self.suspects(m) for m in left)
      if self._me in cover or (unclear and hears_none):
        cover = {self._me}
      else:
        both = cover & _cover(firm, left, suspected)
        cover = {m for m in both if _is_needed(m, known, young, left, suspected)}
      # Merely quiet members are kept: only as many as due edges need.
      pairs = [ends for ends in due if cover.intersection(ends)]
      out |= _cover(pairs, [m for m in left if m in cover], suspected)
    return {m: self._reason(m) for m in members if m in out}

  def find_due(self, members: Collection[str], *, now: float) -> dict[str, str]:
    """Returns the members that this agent has suspected for long enough, with reasons."""
    own = {m: self.of(self._me)[m] for m in members if self.suspects(m)}
    return {m: e.reason for m, e in own.items() if now >= self._find_due(self._me, m, e)}

  def _find_due(self, by: str, whom: str, edge: Edge) -> float:
    """Returns the time at which an edge has waited long enough."""
    mended_secs = max(self._mended_secs.get(end, -math.inf) for end in (by, whom))
    away_secs = max(self._find_away(end) for end in (by, whom))
    return max(
        edge.first_secs + _grace(edge),
        mended_secs + max(_grace(edge), _MENDED_SECS),
        away_secs + _GRACE_SECS,
    )

  def _find_away(self, who: str) -> float:
    """Returns when an agent, or this one, was away last."""
    return max(self._wait_secs, self._away_secs.get(who, -math.inf))

  def _is_due(self, now: float) -> bool:
    """Returns whether any edge may have waited long enough."""
    if now >= self._due_secs:
      self._due_secs = min(
          (
              self._find_due(by, whom, edge)
              for by, found in self._edges.items()
              for whom, edge in found.items()
          ),
          default=math.inf,
      )
    return now >= self._due_secs

  def is_refused(self, accused: str) -> bool:
    """Returns whether this agent is certain that `accused` is dead."""
    edge = self.of(self._me).get(accused)
    return edge is not None and edge.is_certain

  def _find_sure(self, members: Collection[str], now: float, quiet: Collection[str]) -> set[str]:
    """Returns members of whose death most possible witnesses are certain."""
    own = self.of(self._me)
    refused = {m for m in members if self.is_refused(m)}
    if not refused:
      return set()
    voters = [m for m in members if m not in refused]
    most = {m for m in refused if 2 * self._num_certain[m] > len(voters)}
    settled_secs = now - _GRACE_SECS
    if not most or any(own[m].first_secs > settled_secs for m in refused - most):
      return set()  # Others may confirm it soon; if not, this agent may be the one that is cut off.
    # What a witness says that is not heard any more may be long over; so may what it says
    # first once it is heard again: while the network recovers it has not retried all its links.
    heard = [
        (self.of(m), self._find_away(m))
        for m in voters
        if m not in own and m not in quiet and self._mended_secs.get(m, -math.inf) <= settled_secs
    ]
    sure = set()
    for accused in most - {self._me}:
      num_certain = sum(
          edge.is_certain and not settled_secs < away_secs > edge.first_secs
          for edges, away_secs in heard
          if (edge := edges.get(accused)) is not None
      )
      if 2 * num_certain > len(voters):
        sure.add(accused)
    return sure

  def _reason(self, accused: str) -> str:
    accusers = sorted(self._edges, key=lambda by: (by != self._me, by))
    reasons = (self.of(by)[accused].reason for by in accusers if accused in self.of(by))
    return next(reasons, "it cannot reach the others")


def _grace(edge: Edge) -> float:
  return _CERTAIN_GRACE_SECS if edge.is_certain else _GRACE_SECS


def _is_needed(
    member: str,
    edges: Collection[tuple[str, str]],
    young: Collection[frozenset[str]],
    members: list[str],
    suspected: Collection[str],
) -> bool:
  """Returns whether a cover needs a member even without its young edges.

  When a member is no longer cut off, its links mend one after another: the last
  broken ones must not add up with edges to the dead, which all others have.
  """
  if not any(member in pair for pair in young):
    return True
  lasting = [e for e in edges if member not in e or frozenset(e) not in young]
  return member in _cover(lasting, members, suspected)


def _cover(
    edges: Collection[tuple[str, str]], members: list[str], suspected: Collection[str]
) -> set[str]:
  """Returns a small vertex cover of the edges, the most accused first."""
  out, pairs = set(), {frozenset(e) for e in edges}
  ranks = {m: (m in suspected, rank) for rank, m in enumerate(members)}
  while pairs:
    degrees = collections.Counter(itertools.chain.from_iterable(pairs))
    worst = max(degrees.keys() & ranks.keys(), key=lambda m: (degrees[m], ranks[m]))
    out.add(worst)
    pairs = {pair for pair in pairs if worst not in pair}
  return out
