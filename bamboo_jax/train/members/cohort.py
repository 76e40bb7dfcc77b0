"""The processes that train together, as one of them sees them.

A *member* is a process; it hosts one node or several. Agents and sockets stay
below this interface, so a worker runs in the same way alone (`local_cohort`),
in a cluster (`cluster_cohort`) and in a scripted test.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, Protocol, TypeVar

from bamboo_jax.cluster import views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.recovery import layout as layout_lib

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Start:
  """How this member begins.

  Attributes:
    layout: Who trains what, if others train already; else None.
    members: Nodes of those who train already, spares included, by number.
    is_restart: Whether nobody trains any more, and all survivors begin anew
      from a checkpoint.
  """

  layout: layout_lib.Layout | None = None
  members: frozenset[int] = frozenset()
  is_restart: bool = False


class Cohort(Protocol):
  """All members; `gather` is the only synchronisation.

  Attributes:
    number: Number of this member.
    view: The view that this member works in.
    newest: The newest view known here.
    hosted: The live nodes that this member drives.
  """

  number: int
  view: views.View
  newest: views.View
  hosted: frozenset[int]

  def host_of(self, node: int) -> int:
    """Returns the member that hosts a node."""

  def wait_start(self) -> Start:
    """Waits until it is known how this member begins."""

  def enter(self) -> None:
    """Adopts the first view, once the others have taken this member in."""

  def gather(self, key: str, value: T) -> dict[int, T]:
    """Returns the values of all members of the view, by member; blocks.

    Raises `base.ViewChangedError` if a member is gone.
    """

  def check(self) -> None:
    """Gives a sign of life; `base.ViewChangedError` if a node is gone."""

  def wait_change(self, timeout_secs: float) -> views.View | None:
    """Waits for a view that has lost a node; None if none comes in time."""

  def wait_members(self, count: int, *, why: str = "") -> None:
    """Waits until the newest view has `count` nodes; raises as `check`.

    Raises `base.InfeasibleError`, which says `why`, if nobody else can come.
    """

  def adopt(self, number: int) -> None:
    """Works in view `number` from now on."""

  def arrived_secs(self, number: int) -> float:
    """Returns when a view arrived, on `time.perf_counter`."""

  def died_secs(self, number: int) -> float | None:
    """Returns when those died whom view `number` lacks; None if not known."""

  def silent_secs(self, number: int) -> Mapping[int, float]:
    """Returns how long lost nodes had been silent when a view arrived.

    By number, of those that the agent of this member has ever heard.
    """

  def settled(self, steps: int) -> None:
    """Records that nothing of the first `steps` steps is in flight."""

  def report(self, kind: str, **facts: Any) -> None:
    """Reports an event to the supervisor, or to those who watch the run."""


class Director(Protocol):
  """Carries out faults on purpose."""

  def strike(self, due: faults_lib.Due) -> bool:
    """Carries out a due fault; returns when training may go on.

    The value is whether it is a join whose node has come before.
    """


def zones_of(view: views.View) -> Mapping[int, str]:
  """Returns the zone of each node of a view."""
  return {member.number: member.zone for member in view.members}
