"""The processes that train together, as one of them sees them.

A *member* is a process; it hosts one node or several. Agents and sockets stay
below this interface, so a worker runs in the same way alone (`local_cohort`),
in a cluster (`cluster_cohort`) and in a scripted test.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, Protocol, TypeVar

from bamboo_jax import base
from bamboo_jax.cluster import views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.recovery import layout as layout_lib

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Start:
  """The state of the run in which this member starts.

  Attributes:
    layout: The layout of the running members; None if training has not begun.
    members: Numbers of the running nodes, spares included.
    is_restart: Whether training has stopped and all survivors restart it from a
      checkpoint.
  """

  layout: layout_lib.Layout | None = None
  members: frozenset[base.NodeId] = frozenset()
  is_restart: bool = False


class Cohort(Protocol):
  """All members; `gather` is the only synchronisation."""

  number: base.NodeId

  @property
  def view(self) -> views.View:
    """The view that this member works in."""

  @property
  def newest(self) -> views.View:
    """The newest view known here."""

  @property
  def hosted(self) -> frozenset[base.NodeId]:
    """The live nodes that this member drives."""

  def host_of(self, node: base.NodeId) -> base.NodeId:
    """Returns the member that hosts a node."""

  def wait_start(self) -> Start:
    """Blocks until the state in which this member starts is known."""

  def enter(self) -> None:
    """Joins: blocks until a view contains this member, and adopts it."""

  def gather(self, key: str, value: T) -> dict[base.NodeId, T]:
    """Returns the values of all members of the view, by member; blocks.

    A key may be used once per view. Raises `base.ViewChangedError` if a member
    is lost.
    """

  def check(self) -> None:
    """Reports progress; raises `base.ViewChangedError` if a node is lost."""

  def retract(self) -> None:
    """Tells all members to use values of this attempt in no other; blocks.

    Returns once all know it; raises as a transfer does if a node is lost.
    """

  def take_retracted(self) -> bool:
    """Returns whether any member has called `retract` since the last call."""

  def wait_change(self, timeout_secs: float) -> views.View | None:
    """Returns the next view that lacks a node; None after a timeout; blocks."""

  def wait_members(self, count: int, *, why: str = "") -> None:
    """Blocks until the newest view has `count` nodes; raises as `check`.

    Raises `base.InfeasibleError` with the text `why` if no node can join.
    """

  def adopt(self, number: base.ViewId) -> None:
    """Makes view `number` the one that this member works in."""

  def arrived_secs(self, number: base.ViewId) -> float:
    """Returns the time of arrival of a view, on `time.perf_counter`."""

  def died_secs(self, number: base.ViewId) -> float | None:
    """Returns when the nodes that view `number` lacks died.

    On `time.perf_counter`; None if not known.
    """

  def silent_secs(self, number: base.ViewId) -> Mapping[base.NodeId, float]:
    """Returns how long lost nodes had been silent when a view arrived.

    By number, of the nodes that the agent of this member was in contact with.
    """

  def collect_addresses(self) -> None:
    """Learns where the members of a new view listen, and begins to connect to them.

    Ends transfers begun before. Blocks; raises `base.ViewChangedError` after another loss.
    """

  def settled(self, steps: base.StepId) -> None:
    """Records that no message of the first `steps` steps is in flight."""

  def report(self, kind: str, **facts: Any) -> None:
    """Reports an event to the agent, for joining nodes and observers."""

  def strike(self, due: faults_lib.Due) -> bool:
    """Carries out what a due fault does to the nodes of this member, once in a run.

    Returns whether it is a join whose node has come before.
    """


def acts(cohort: Cohort, layout: layout_lib.Layout) -> bool:
  """Returns whether this member acts for all.

  It hosts the lowest live node with a role in the layout, or the lowest of the
  view if none is live. Before the first view all are.
  """
  alive = cohort.view.numbers or layout.nodes
  return min(layout.nodes & alive or alive) in cohort.hosted


def find_victims(due: faults_lib.Due, view: views.View) -> list[views.Member]:
  """Returns the members of a view that a fault hits."""
  fault, members = due.fault, view.members
  match fault.kind:
    case "all":
      return [*members]
    case "zone":
      return [m for m in members if m.zone == fault.node]
    case "leader":
      return [*members[:1]]
  if due.owner is not None:
    return [m for m in members if m.number == due.owner]
  return [m for m in members if m.name == fault.node]


def zones_of(view: views.View) -> Mapping[base.NodeId, str]:
  """Returns the zone and host of each node of a view, as `recovery.placement` takes them."""
  return {member.number: f"{member.zone}|{member.host}" for member in view.members}
