"""What the nodes of a run did with each second, for its account.

All time of a process is charged to its nodes: steps by their phases and passes,
other time by the activity of the loop. A node that joins is charged from its
start. Every member measures; the one that writes the journal adds the charges to
the totals there. Time between two processes is not charged, since it is unknown
which nodes were live.
"""

from collections.abc import Iterator, Mapping
import contextlib
import statistics
import time

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.training import step as step_lib
from bamboo_jax.training.record import step_times

NodeTime = account_lib.NodeTime


class Charges:
  """Charges the time of a run, from `since_secs`, on `time.perf_counter`."""

  def __init__(self, since_secs: float) -> None:
    self._since_secs = self._last = since_secs
    self._new = account_lib.Account()
    # At the last charge, with spares; of a member that joins, none before its first step.
    self._layout = layout_lib.Layout()
    self._boot_secs = 0.0  # Of nodes that have joined, not charged yet.
    self._otherwise = "restart"  # Charged by default; "idle" after the first step.

  def begin(self, layout: layout_lib.Layout) -> None:
    """Starts a run, or resumes one: these nodes are charged since `since_secs`."""
    self._layout = layout
    self.charge()

  def take(self) -> account_lib.Account:
    """Returns the sum of all charges since the last call."""
    found, self._new = self._new, account_lib.Account()
    return found

  def welcome(
      self, boot_secs: Mapping[base.NodeId, float], layout: layout_lib.Layout | None
  ) -> dict[base.NodeId, float]:
    """Charges joining nodes for the time since their start, with the next step.

    Before the first step, the nodes of the run are charged from its start.

    Args:
      boot_secs: Seconds from each node's start until now, by number.
      layout: That of the nodes charged from now on; None within a step.

    Returns:
      The entries of `boot_secs` of nodes that join a run that has begun.
    """
    if not self._layout.live:
      return {}
    come = {n: s for n, s in boot_secs.items() if n not in self._layout.live}
    if self._otherwise == "restart":
      self._boot_secs += len(come) * (time.perf_counter() - self._since_secs)
      come = {}
    self._boot_secs += sum(come.values())
    if layout is not None:
      self.charge()
      self._layout = layout
    return come

  def charge(self, kind: str | None = None) -> None:
    """Charges the time since the last charge to one of `account.KINDS`, for all nodes."""
    self._charge_until(time.perf_counter(), kind or self._otherwise)

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
      self, step: step_lib.StepRecord, layout: layout_lib.Layout, num_samples: int
  ) -> None:
    """Charges a step that has just ended, with that layout.

    `num_samples` is the number of samples of its batch that were trained on.
    """
    self._charge_until(step.start_secs, self._otherwise)
    self._otherwise = "idle"
    before, self._layout = self._layout if self._layout.live else layout, layout
    time_of_step = split_step(step, before, layout) + NodeTime(idle=self._boot_secs)
    self._boot_secs = 0.0
    self._add(step.secs, time_of_step, num_samples)
    self._last = step.start_secs + step.secs
    self.charge("recovery" if step.recoveries else None)

  def _charge_until(self, end_secs: float, kind: str) -> None:
    num_nodes = len({*self._layout.live})
    if num_nodes and (secs := max(0.0, end_secs - self._last)):
      self._add(secs, NodeTime(**{kind: secs * num_nodes}))
      self._last = end_secs

  def _add(self, secs: float, did: NodeTime, num_samples: int = 0) -> None:
    """Charges wall time; `did` is what the live nodes did in it."""
    self._new += account_lib.Account(secs, did.total, did, num_samples)


def split_step(
    step: step_lib.StepRecord, before: layout_lib.Layout, after: layout_lib.Layout
) -> NodeTime:
  """Returns the time of all nodes in a step, those that died in it included.

  Unaccounted time is the bubble. Threads measure the parts, which may overlap a
  little; an excess over the available time is cut from `restart` first, then from `recovery`,
  `redundant`, `communication` and `useful`.

  Args:
    before: The layout at its start, with spares.
    after: The layout at its end.
  """
  stayed, trained = {*before.live} & {*after.live}, before.nodes & {*after.live}
  of_phases = lambda *phases: sum(step.phase_secs.get(phase, 0.0) for phase in phases)
  # What all nodes do together. Passes are measured per node; a vote is a wait.
  joint = NodeTime(
      useful=of_phases("norm", "apply"),
      communication=step_times.mean_sums_secs(step.measured.sums_secs, after),
      redundant=of_phases("refresh"),
      recovery=sum(r.planning_secs for r in step.recoveries),
  )
  worked, secs = step.measured.passes + joint * len(trained), step.secs - step.idle_secs
  left, parts = len(trained) * secs, {}
  for kind in ("useful", "communication", "redundant", "recovery", "restart"):
    parts[kind] = min(getattr(worked, kind), left)
    left -= parts[kind]
  lives = [max(0.0, r.view_at_secs - step.start_secs) for r in step.recoveries]
  return NodeTime(
      **parts,
      bubble=left,
      lost=len({*before.live} - stayed) * statistics.fmean(lives or [0]),
      idle=len(stayed - trained) * secs + len(stayed) * step.idle_secs,
  )
