"""What the nodes of a run did with each second, for its account.

All time of a process is charged to its nodes: steps by their phases and passes,
other time by the activity of the loop. A node that joins is charged from its
start. Every member measures; the one that writes the journal adds the charges to
the totals there. Time between two processes is not charged, since it is unknown
which nodes were live.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import statistics
import time
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.training import step as step_lib

NodeTime = account_lib.NodeTime

# Phases in which all nodes work together, by the kind of their time. Passes are
# measured per node; a vote is a wait.
_JOINT = {"useful": ("norm", "apply"), "redundant": ("refresh",)}


class Live(NamedTuple):
  """The live nodes: those that have a stage, and the spare ones."""

  training: frozenset[base.NodeId] = frozenset()
  spares: frozenset[base.NodeId] = frozenset()

  @property
  def nodes(self) -> frozenset[base.NodeId]:
    return self.training | self.spares


class Charges:
  """Charges the time of a run, from `since_secs` on its `clock`."""

  def __init__(self, since_secs: float, clock: Callable[[], float] = time.perf_counter) -> None:
    self._clock, self._since_secs, self._last = clock, since_secs, since_secs
    self._new = account_lib.Account()
    self._live = Live()  # At the last charge; of a member that joins, none before its first step.
    self._boot_secs = 0.0  # Of nodes that have joined, not charged yet.
    self._otherwise = "restart"  # Charged by default; "idle" after the first step.

  def begin(self, live: Live) -> None:
    """Starts a run, or resumes one: these nodes are charged since `since_secs`."""
    self._live = live
    self.charge()

  def take(self) -> account_lib.Account:
    """Returns the sum of all charges since the last call."""
    found, self._new = self._new, account_lib.Account()
    return found

  def welcome(
      self, boot_secs: Mapping[base.NodeId, float], live: Live | None
  ) -> dict[base.NodeId, float]:
    """Charges joining nodes for the time since their start, with the next step.

    Before the first step, the nodes of the run are charged from its start.

    Args:
      boot_secs: Seconds from each node's start until now, by number.
      live: The nodes charged from now on; None within a step.

    Returns:
      The entries of `boot_secs` of nodes that join a run that has begun.
    """
    if not self._live.nodes:
      return {}
    come = {n: s for n, s in boot_secs.items() if n not in self._live.nodes}
    if self._otherwise == "restart":
      self._boot_secs += len(come) * (self._clock() - self._since_secs)
      come = {}
    self._boot_secs += sum(come.values())
    if live is not None:
      self.charge()
      self._live = live
    return come

  def charge(self, kind: str | None = None) -> None:
    """Charges the time since the last charge to one of `account.KINDS`, for all nodes."""
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

  def add_step(
      self, step: step_lib.Committed, live: Live, *, num_samples: int, sums_secs: float
  ) -> None:
    """Charges a step that has just ended.

    Args:
      live: Live nodes at its end.
      num_samples: Samples of its batch that were trained on.
      sums_secs: Mean time per node of summing gradients, without waiting.
    """
    self._charge_until(step.start_secs, self._otherwise)
    self._otherwise = "idle"
    before, self._live = self._live if self._live.nodes else live, live
    time_of_step = _split(step, before, live, sums_secs) + NodeTime(idle=self._boot_secs)
    self._boot_secs = 0.0
    self._add(step.secs, time_of_step, num_samples)
    self._last = step.start_secs + step.secs
    self.charge("recovery" if step.recoveries else None)

  def _charge_until(self, end_secs: float, kind: str) -> None:
    if self._live.nodes and (secs := max(0.0, end_secs - self._last)):
      self._add(secs, NodeTime(**{kind: secs * len(self._live.nodes)}))
      self._last = end_secs

  def _add(self, secs: float, did: NodeTime, num_samples: int = 0) -> None:
    """Charges wall time; `did` is what the live nodes did in it."""
    self._new += account_lib.Account(secs, did.total, did, num_samples)


def _split(step: step_lib.Committed, before: Live, after: Live, sums_secs: float) -> NodeTime:
  """Returns a step's node time; `before` and `after` have the nodes then."""
  stayed, phase_secs = before.nodes & after.nodes, step.phase_secs
  trained = before.training & after.nodes
  lives = [max(0.0, r.view_at_secs - step.start_secs) for r in step.recoveries]
  joint = {k: sum(phase_secs.get(p, 0.0) for p in phases) for k, phases in _JOINT.items()}
  return account_lib.split_step(
      step.secs - step.idle_secs,
      num_nodes=len(trained),
      num_idle=len(stayed - trained),
      passes=step.measured.passes,
      joint=NodeTime(
          **joint, communication=sums_secs, recovery=sum(r.planning_secs for r in step.recoveries)
      ),
      lost_secs=len(before.nodes - after.nodes) * statistics.fmean(lives or [0]),
  ) + NodeTime(idle=len(stayed) * step.idle_secs)
