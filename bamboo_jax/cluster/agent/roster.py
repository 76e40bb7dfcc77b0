"""The agents that one agent knows, and the view they are in; pure."""

from bamboo_jax.cluster import views


class Roster:
  """All known agents, this one (`me`) included, by incarnation.

  A view without a member of the one before has at least `least` nodes. `ready`
  has the era of each worker that could be a member; `lost` and `noticed` the
  reasons of deaths and preemptions.
  """

  def __init__(self, *, least: int) -> None:
    self.me: views.Member | None = None
    self.view = views.EMPTY
    self.known: dict[str, views.Member] = {}
    self.ready: dict[str, int] = {}
    self.lost: dict[str, str] = {}
    self.done: set[str] = set()
    self.noticed: dict[str, str] = {}
    self._least = least
    self._views: dict[int, views.View] = {}
    self._dialed: set[str] = set()

  @property
  def is_member(self) -> bool:
    """Whether this agent is in the current view."""
    return self.me is not None and bool(self.view.find(self.me.incarnation))

  @property
  def can_hand_over(self) -> bool:
    """Whether a notice would be news, and others can take over from here."""
    return self.is_member and self.me.incarnation not in self.noticed

  def dial(self, member: views.Member) -> bool:
    """Records a connection to be made; returns whether it is new."""
    known = member.incarnation
    if known == self.me.incarnation or known in self._dialed | self.lost.keys():
      return False
    self._dialed.add(known)
    return True

  def lose(self, incarnation: str, reason: str) -> bool:
    """Records a death; returns whether that is news: not if it was done."""
    if incarnation in self.done or incarnation in self.lost:
      return False
    self.lost[incarnation] = reason
    return True

  def adopt(self, view: views.View) -> bool:
    """Adopts a view; returns False if it is not newer than the current."""
    if view.number <= self.view.number:
      return False
    self.view = self._views[view.number] = view
    for member in view.members:
      self.known.setdefault(member.incarnation, member)
    return True

  def members_of(self, view: int) -> tuple[views.Member, ...]:
    """Returns the members of a view by its number; none if it is unknown."""
    return self._views.get(view, views.EMPTY).members

  def drop_older(self, number: int) -> None:
    """Forgets the views before one."""
    for old in [n for n in self._views if n < number]:
      del self._views[old]

  def leader(self) -> views.Member | None:
    """Returns the agent that makes the next view, None if none is left."""
    if self.view.members:
      return self.view.leader(self.lost)
    return min(self._candidates(), default=None)

  def wanted(self, *, era: int | None) -> views.View | None:
    """Returns the view to propose here, in `era` or later, or None."""
    leader = self.leader()
    if leader is None or leader.incarnation != self.me.incarnation:
      return None
    view = views.next_view(
        self.view,
        lost=self.lost,
        candidates=self._candidates(),
        noticed=self.noticed,
        least=self._least,
        eras=self.ready,
        era=era,
    )
    return None if view is self.view else view

  def _candidates(self) -> list[views.Member]:
    ready = self.ready.keys() - self.lost.keys()
    return [m for i, m in self.known.items() if i in ready]
