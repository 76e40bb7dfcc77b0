"""A cohort of one member that hosts all nodes: training in one process.

A fault has the effect of a death in a cluster: it makes a view without the
victims, so that `check` and `gather` raise; the worker then adopts the view.
"""

import collections
from collections.abc import Collection, Mapping, Sequence
import random
import time
from typing import Any, TypeVar

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.cluster import views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.training.members import cohort as cohort_lib

T = TypeVar("T")
ZONES = ("a",)

# The agents survive these: once all nodes are dead, they restart their workers.
_SPARES_AGENT = ("kill", "stop", "all")
_NUM_SAID = 16  # Last keys of a view that are checked against repetition.


class LocalCohort:
  """The only member, which injects the faults of all nodes.

  Args:
    num_nodes: Number of nodes, spares included.
    zones: Zones of the nodes, assigned in turn.
    seed: Decides when faults without a fixed time happen.

  Attributes:
    first_step: Number of steps done at the start; -1 before it is known.
    happened: Lines of the faults that have hit a node, and of joins.
  """

  def __init__(self, num_nodes: int, *, zones: Sequence[str] = ZONES, seed: int = 0) -> None:
    self.number = base.NodeId(0)
    self._zones = zones
    self._random = random.Random(seed)
    self._next = 0
    self._said: collections.deque[str] = collections.deque(maxlen=_NUM_SAID)
    self._views: dict[base.ViewId, views.View] = {}
    self._arrived: dict[base.ViewId, float] = {}
    self._done: set[tuple[int, faults_lib.Fault]] = set()
    self.happened: set[int] = set()
    self.first_step = -1
    self._is_asked_to_stop = self._has_entered = False
    self._num_fallen = 0  # Dead nodes whose agents live.
    self._num_checks = self._checks_per_step = 0
    self._pending: list[tuple[int, faults_lib.Due]] = []
    self.newest = views.EMPTY
    self._change(come=num_nodes, reason="the run begins")
    self.view = self.newest

  @property
  def hosted(self) -> frozenset[base.NodeId]:
    """All live nodes."""
    return frozenset(self.newest.numbers)

  def host_of(self, node: base.NodeId) -> base.NodeId:
    del node
    return self.number

  def wait_start(self) -> cohort_lib.Start:
    return cohort_lib.Start()

  def enter(self) -> None:
    """The first view is already adopted."""
    self._has_entered = True

  def is_asked_to_stop(self) -> bool:
    """Returns whether to save and end the run after this step."""
    return self._is_asked_to_stop

  def ask_to_stop(self) -> bool:
    """Requests to save and end the run; False if training has not begun."""
    self._is_asked_to_stop = self._has_entered
    return self._has_entered

  def gather(self, key: str, value: T) -> dict[base.NodeId, T]:
    self._raise_if_changed()
    assert key not in self._said, f"{key} is said twice in one view"
    self._said.append(key)
    return {self.number: value}

  def check(self) -> None:
    """Injects pending faults."""
    self._num_checks += 1
    due = [d for at, d in self._pending if at <= self._num_checks]
    self._pending = [p for p in self._pending if p[0] > self._num_checks]
    for d in due:
      self._strike(d)
    self._raise_if_changed()

  def retract(self) -> None:
    """Tells nobody: this member outlives its nodes, and votes."""

  def take_retracted(self) -> bool:
    return False

  def wait_change(self, timeout_secs: float) -> views.View | None:
    """Does not wait."""
    del timeout_secs
    return self.newest if self._is_changed() else None

  def wait_members(self, count: int, *, why: str = "") -> None:
    """Does not wait: joining nodes are in the view at once."""
    if len(self.newest.members) < count:
      raise base.InfeasibleError(why)
    self._raise_if_changed()

  def adopt(self, number: base.ViewId) -> None:
    self.view = self._views[number]
    for old in [n for n in self._views if n < number]:
      del self._views[old], self._arrived[old]
    self._said.clear()

  def arrived_secs(self, number: base.ViewId) -> float:
    """The time of the death."""
    return self._arrived[number]

  def died_secs(self, number: base.ViewId) -> float | None:
    """A death makes its view at once."""
    return self._arrived[number]

  def silent_secs(self, number: base.ViewId) -> Mapping[base.NodeId, float]:
    del number
    return {}

  def collect_addresses(self) -> None:
    pass

  def settled(self, steps: base.StepId) -> None:
    if self.first_step < 0:
      self.first_step = steps
    num = self._num_checks
    self._pending = [(at - num, due) for at, due in self._pending]
    self._checks_per_step, self._num_checks = num, 0

  def report(self, kind: str, **facts: Any) -> None:
    """A node that reports to leave is gone."""
    if kind == "leave":
      self._change(lost={facts["node"]}, reason="a node has left")
    elif kind == "slow":
      name = f"n{facts['node']}"
      why = f"{name} will leave: {facts['reason']}"
      self._change(leaving={facts["node"]}, reason=why)

  def strike(self, due: faults_lib.Due) -> bool:
    key = (due.fault.line, due.fault)
    if key in self._done:  # The step may be repeated.
      return due.fault.kind == "join"
    self._done.add(key)
    if due.fault.kind == "join":
      self.happened.add(due.fault.line)
      self._change(come=1, reason="a node has joined")
    elif due.fault.at is None:
      delay = self._random.randint(1, max(1, self._checks_per_step))
      self._pending.append((self._num_checks + delay, due))
    else:
      self._strike(due)
    return False

  def _strike(self, due: faults_lib.Due) -> None:
    victims = cohort_lib.find_victims(due, self.newest)
    kind = due.fault.kind
    if not victims:
      return
    self.happened.add(due.fault.line)
    if kind == "slow":
      return  # `step.StepRunner` lets passes take longer.
    numbers = {member.number for member in victims}
    names = ", ".join(member.name for member in victims)
    if kind == "notice":
      self._change(leaving=numbers, reason=f"{names} will be preempted")
      return
    if kind in _SPARES_AGENT:
      self._num_fallen += len(victims)
    come = 0
    if len(numbers) == len(self.newest.members):
      come, self._num_fallen = self._num_fallen, 0
      if not come:
        raise ValueError(f"No live node is left after fault {due.fault}.")
    self._change(lost=numbers, come=come, reason=f"{names} died: {kind}")

  def _change(
      self,
      *,
      lost: Collection[base.NodeId] = (),
      leaving: Collection[base.NodeId] = (),
      come: int = 0,
      reason: str,
  ) -> None:
    before = self.newest
    stay = [m for m in before.members if m.number not in lost]
    for number in base.nodes(self._next, self._next + come):
      zone = self._zones[number % len(self._zones)]
      name = f"n{number}"
      stay.append(views.Member(number, name, zone, name, "", 0))
      logs.note_names({number: name})
    self._next += come
    left = {*before.leaving, *leaving} & {m.number for m in stay}
    self.newest = views.View(before.next_number, tuple(stay), reason, leaving=tuple(sorted(left)))
    self._views[self.newest.number] = self.newest
    self._arrived[self.newest.number] = time.perf_counter()

  def _is_changed(self) -> bool:
    return not self.view.numbers <= self.newest.numbers

  def _raise_if_changed(self) -> None:
    if self._is_changed():
      raise base.ViewChangedError(self.newest.reason)
