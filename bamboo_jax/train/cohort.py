"""The processes that train together, as one of them sees them.

A *member* is a process; it hosts one node or several. What is between the
members (agents, sockets, sessions of JAX) stays below this interface, so a
worker runs in the same way alone (`local_cohort`), in a cluster
(`cluster_cohort`) and in a test that scripts what the others say.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, Protocol, TypeVar

from bamboo_jax.cluster import views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.recovery import assignment

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Start:
  """How this member begins.

  Attributes:
    layout: Who trains what, if others train already; else None.
    is_restart: Whether nobody trains any more, and all that are left begin
      anew from a checkpoint.
  """

  layout: assignment.Layout | None = None
  is_restart: bool = False


class Cohort(Protocol):
  """All members. `gather` is the only synchronisation that there is.

  Attributes:
    number: Number of this member.
    view: The nodes that this member works with.
    newest: The newest view that it knows of.
    hosted: The live nodes that it drives.
  """

  number: int
  view: views.View
  newest: views.View
  hosted: frozenset[int]

  def host_of(self, node: int) -> int:
    """Returns the member that hosts a node."""

  def wait_start(self) -> Start:
    """Returns how this member begins; waits until somebody knows."""

  def enter(self) -> None:
    """Adopts the first view, once the others have taken this member in."""

  def gather(self, key: str, value: T) -> dict[int, T]:
    """Returns what every member of the view says, by member.

    Raises:
      base.ViewChangedError: One of them is gone, so they never all will.
    """

  def check(self) -> None:
    """Shows that this member goes on.

    Raises:
      base.ViewChangedError: A node of the view is gone.
    """

  def wait_change(self, timeout_secs: float) -> views.View | None:
    """Returns the view to adopt since a node of this one is gone.

    None if none is gone in time.
    """

  def wait_members(self, count: int) -> None:
    """Waits until the newest view has so many nodes; raises as `check`."""

  def adopt(self, number: int) -> None:
    """Works in the view with a number from now on."""

  def arrived_secs(self, number: int) -> float:
    """Returns when a view came here, on `time.perf_counter`."""

  def settled(self, steps: int) -> None:
    """Records that nothing of the first `steps` steps is under way any more."""

  def report(self, kind: str, **facts: Any) -> None:
    """Tells whoever supervises this member, or watches the run."""


class Director(Protocol):
  """Whoever carries out faults on purpose."""

  def strike(self, due: faults_lib.Due) -> bool:
    """Is told that a fault is due; returns when training may go on.

    Returns:
      Whether it is a join whose node has come before.
    """


def zones_of(view: views.View) -> Mapping[int, str]:
  """Returns the zone of each node of a view."""
  return {member.number: member.zone for member in view.members}
