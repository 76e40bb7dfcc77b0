"""The agents that one agent knows, and the view they are in; pure."""

from bamboo_jax import base
from bamboo_jax.cluster import messages, views

_NUM_OLD = 8


class AgentRoster:
  """All known agents, this one (`me`) included, by incarnation."""

  def __init__(self) -> None:
    self.me: views.Member | None = None
    self.most_number = -1  # The highest of any agent so far.
    self.view = views.EMPTY
    self.known: dict[str, views.Member] = {}
    self.ready: dict[str, messages.Ready] = {}  # As reported by them.
    self.gone: dict[str, str] = {}  # Why they left or died.
    self.left: set[str] = set()  # Removed by a view.
    self.done: set[str] = set()
    self.noticed: dict[str, str] = {}  # Why they will be preempted.
    # Those that show their address, None before the first look.
    self.registered: set[str] | None = None
    self._views: dict[base.ViewId, views.View] = {}

  @property
  def is_member(self) -> bool:
    return self.me is not None and bool(self.view.find(self.me.incarnation))

  @property
  def own(self) -> views.Member:
    """This agent, once it has a number."""
    assert self.me is not None
    return self.me

  @property
  def is_at_work(self) -> bool:
    """Whether this agent is a member that has a worker."""
    return self.is_member and self.own.incarnation not in self.gone

  @property
  def can_hand_over(self) -> bool:
    """Whether this node is a member that has had no preemption notice yet."""
    return self.is_member and self.own.incarnation not in self.noticed

  @property
  def incarnations(self) -> list[str]:
    """Members of the current view, in order."""
    return [m.incarnation for m in self.view.members]

  def meet(self, member: views.Member) -> bool:
    """Records an agent; returns whether to connect to it: if it is new."""
    known = member.incarnation
    self.most_number = max(self.most_number, member.number)
    if known == self.own.incarnation or known in self.left:
      return False
    is_new = known not in self.known
    self.known[known] = member
    return is_new

  def drop(self, incarnation: str) -> None:
    """Removes an agent from all but the views."""
    for table in (self.known, self.ready, self.noticed):
      table.pop(incarnation, None)

  def adopt(self, view: views.View) -> bool:
    """Adopts a view; returns False if it is not newer than the current."""
    if view.number <= self.view.number:
      return False
    self.view = self._views[view.number] = view
    return True

  def find_view(self, number: base.ViewId) -> views.View:
    """Returns a view by its number; one without members if it is unknown."""
    return self._views.get(number, views.EMPTY)

  def views(self) -> list[views.View]:
    """Returns the views that other agents may have missed, in order."""
    return [v for _, v in sorted(self._views.items())]

  def views_of(self, incarnation: str) -> list[base.ViewId]:
    """Returns the numbers of the known views that have an agent, in order."""
    return [n for n, v in sorted(self._views.items()) if v.find(incarnation)]

  def drop_older(self, number: base.ViewId) -> None:
    """Forgets older views, but for a few that other agents may have missed."""
    for old in [n for n in self._views if n < number - _NUM_OLD]:
      del self._views[old]
