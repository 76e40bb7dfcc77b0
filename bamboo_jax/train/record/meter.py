"""The charges of a run: what its nodes did with each second.

All time of a process is charged to its nodes: steps by their phases and passes,
other time by the activity of the loop. A node that joins is charged from its
start. Every member measures; the one that writes the log adds the charges to
the totals there. Time between two processes is not charged, since it is unknown
which nodes were live.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import statistics
import time
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.train import step as step_lib


@dataclasses.dataclass(frozen=True)
class Nodes:
  """The live nodes of a run; `owners` is by pipeline and stage."""

  owners: Sequence[Sequence[int]]
  spares: Collection[int]

  @property
  def training(self) -> frozenset[int]:
    """Nodes that have a stage."""
    return frozenset(node for row in self.owners for node in row)

  @property
  def live(self) -> frozenset[int]:
    """All live nodes, spares included."""
    return self.training | frozenset(self.spares)


# Phases in which all nodes work together, by the kind of their time. Passes are
# measured per node; a vote is a wait.
_JOINT = {"useful": ("norm", "apply"), "redundant": ("refresh",)}


class Charge(NamedTuple):
  """Wall time, and what the live nodes did in it."""

  secs: float
  node_time: account_lib.NodeTime
  num_samples: int = 0


class Meter:
  """Charges the time of a run.

  Args:
    clock: Returns seconds, on the clock of `step.Committed`.
    since_secs: Start of the charged time, on `clock`.
  """

  def __init__(self, *, since_secs: float, clock: Callable[[], float] = time.perf_counter) -> None:
    self._clock = clock
    self._since_secs = self._last = since_secs
    self._is_running = self._has_stepped = False
    self._boot_secs = 0.0  # Of nodes that have joined, not charged yet.
    self._charges: list[Charge] = []
    self._nodes = Nodes((), ())  # At the last charge.
    self._otherwise = "restart"  # Charged by default.

  def begin(self, nodes: Nodes) -> None:
    """Starts a run, or resumes one: `nodes` are charged since `since_secs`."""
    self._is_running, self._nodes = True, nodes
    self.charge()

  def take(self) -> list[Charge]:
    """Returns the charges since the last call."""
    found, self._charges = self._charges, []
    return found

  def welcome(
      self, boot_secs: Mapping[base.NodeId, float], nodes: Nodes | None
  ) -> dict[base.NodeId, float]:
    """Charges joining nodes for the time since their start, with the next step.

    Before the first step, the nodes of the run are charged from its start.

    Args:
      boot_secs: Seconds from each node's start until now, by number.
      nodes: The nodes charged from now on; None within a step.

    Returns:
      The entries of `boot_secs` of nodes that join a run that has begun.
    """
    if not self._is_running:
      return {}
    come = {n: s for n, s in boot_secs.items() if n not in self._nodes.live}
    if not self._has_stepped:
      self._boot_secs += len(come) * (self._clock() - self._since_secs)
      come = {}
    self._boot_secs += sum(come.values())
    if nodes is not None:
      self.charge()
      self._nodes = nodes
    return come

  def charge(self, kind: str | None = None) -> None:
    """Charges the time since the last charge to `kind`, for all nodes.

    `kind` is one of `account.KINDS`; None is "restart" before the first step
    and "idle" after it.
    """
    self._charge_until(self._clock(), kind or self._otherwise)

  @contextlib.contextmanager
  def during(self, kind: str) -> Iterator[None]:
    """Charges the time of a `with` block to `kind`."""
    self.charge()
    before, self._otherwise = self._otherwise, kind
    try:
      yield
    finally:
      self.charge()
      self._otherwise = before

  def add_step(self, step: step_lib.Committed, *, nodes: Nodes, num_samples: int) -> list[Charge]:
    """Returns all charges up to now, for a step that has just ended.

    To a member that has joined a run, the time before its first step is unknown.

    Args:
      nodes: Live nodes at its end.
      num_samples: Samples of its batch that were trained on.
    """
    if not self._is_running:
      self._is_running, self._nodes, self._last = True, nodes, step.start_secs
    self._charge_until(step.start_secs, self._otherwise)
    self._otherwise, self._has_stepped = "idle", True
    before, self._nodes = self._nodes, nodes
    time_of_step = _split(step, before, nodes) + account_lib.NodeTime(idle=self._boot_secs)
    self._boot_secs = 0.0
    self._charges.append(Charge(step.secs, time_of_step, num_samples))
    self._last = step.start_secs + step.secs
    self.charge("recovery" if step.recoveries else None)
    return self.take()

  def _charge_until(self, end_secs: float, kind: str) -> None:
    if self._is_running and (secs := max(0.0, end_secs - self._last)):
      node_secs = secs * len(self._nodes.live)
      self._charges.append(Charge(secs, account_lib.NodeTime(**{kind: node_secs})))
      self._last = end_secs


def _split(step: step_lib.Committed, before: Nodes, after: Nodes) -> account_lib.NodeTime:
  """Returns a step's node time; `before` and `after` have the nodes then."""
  trained = before.training & after.live
  lives = [max(0.0, r.view_at_secs - step.start_secs) for r in step.recoveries]
  split = account_lib.split_step(
      step.secs - step.idle_secs,
      num_nodes=len(trained),
      num_idle=len((before.live & after.live) - trained),
      passes=step.passes,
      joint=account_lib.NodeTime(
          **{
              kind: sum(step.phase_secs.get(phase, 0.0) for phase in phases)
              for kind, phases in _JOINT.items()
          },
          communication=step.sums_secs,
          recovery=sum(r.planning_secs for r in step.recoveries),
      ),
      lost_secs=len(before.live - after.live) * statistics.fmean(lives or [0]),
  )
  num_waited = len(before.live & after.live)
  return split + account_lib.NodeTime(idle=num_waited * step.idle_secs)
