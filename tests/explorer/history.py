"""Runs a plan on a simulated cluster, and says what was violated.

What must hold, whatever happens; each is a function of the trace, or of how it ends:

  one         a view that an agent has adopted is what others adopt by that number, and what
              the records say for ever
  state       all who commit a step in one life have the same state after it
  fence       nobody commits in a view well after others have in a later one, nor in a life
              well after a later one has begun, unless it cannot know
  copies      nobody goes back to a checkpoint while a worker has the state, and no agent ends
              with it
  accuracy    a node is left out only if it is to blame, see `FaultPlan.excused`
  progress    steps are committed again soon after the last fault
  end         all agents end, and well, once the last step is done
  view        in the end all know the newest view
  bounds      what an agent keeps does not grow
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tests.explorer import cluster as cluster_lib, faults, plans

_FENCE_SECS = 3.0  # Agents look at the views every 2 s.
_SETTLE_SECS = 15.0  # After the last fault, before a history may end well.
_PATIENCE_SECS = 40.0  # Before it must have; a dead run is asked for 20 s.
_RECENT_SECS = 2.0
_MOST_KEPT = 60
_FAILURES = (AssertionError, AttributeError, LookupError, TypeError)
_E = TypeVar("_E", bound=cluster_lib.Event)


class ClusterHistory(cluster_lib.Cluster):
  """A cluster, and what happens to it."""

  def __init__(self, plan: plans.FaultPlan) -> None:
    super().__init__(plan)
    for i in range(plan.num_nodes):
      self.clock.at(self.random.uniform(0.0, 0.3), self.come, f"n{i}")
    for fault in plan.faults:
      if fault.kind == "join":
        self.clock.at(fault.at_secs, self.come, *fault.hosts)
      else:
        self.process.start(faults.carry_out, fault, self)

  def run(self) -> list[str]:
    """Runs it; returns the violations."""
    self.clock.run(self.plan.end_secs + _SETTLE_SECS)
    end_secs = self.plan.end_secs + _PATIENCE_SECS
    while not (found := self.find_violations()) and (left := [*self._find_unsettled()]):
      if self.clock.now >= end_secs and not (self.plan.num_steps and self._is_recent()):
        return [f"{self.clock.now:.2f} s: {text}" for text in left]
      self.clock.run_for(1.0)
    return found

  def find_violations(self) -> list[str]:
    """Returns what has been violated by now, as `when s: invariant: what`."""
    checks: tuple[Callable[[], Iterator[tuple[float, str]]], ...] = (
        self._find_views,
        self._find_states,
        self._find_fenced,
        self._find_lost_copies,
        self._find_growth,
    )
    return [f"{secs:.2f} s: {text}" for check in checks for secs, text in check()]

  # Invariants of the trace.

  def _events(self, kind: type[_E]) -> Iterator[_E]:
    return (event for event in self.trace if isinstance(event, kind))

  def _find_views(self) -> Iterator[tuple[float, str]]:
    known = {}
    for event in self._events(cluster_lib.Adopted):
      for view in event.views:
        if known.setdefault(view.number, view) != view:
          yield event.secs, f"one: {event.host} has {view}, others {known[view.number]}"
    for number, view in known.items():
      if (there := self.place.find_view(number)) != view:
        yield self.clock.now, f"one: view {number} was {view}, and is {there} in the records"

  def _find_states(self) -> Iterator[tuple[float, str]]:
    excused = self.plan.excused()  # It may be the last that one does, and nobody hears of it.
    known: dict[tuple[str, int, int], str] = {}
    for event in self.commits():
      if event.host not in excused:
        if known.setdefault((*event.life, event.steps), event.state) != event.state:
          yield event.secs, f"state: {_describe(event)} of another run"

  def _find_fenced(self) -> Iterator[tuple[float, str]]:
    late_secs = _FENCE_SECS + self.plan.away_secs
    begun = {
        event.views[0].number: event.secs
        for event in self._events(cluster_lib.Adopted)
        if not event.host and not event.views[0].members
    }
    first: dict[int, float] = {}  # The first commit in a view.
    for event in self.commits():
      first.setdefault(event.view.number, event.secs)
      for what, own, known in (
          ("life", event.view.epoch, begun),
          ("view", event.view.number, first),
      ):
        if later := [n for n, secs in known.items() if n > own and secs < event.secs - late_secs]:
          yield event.secs, f"fence: {_describe(event)}, {what} {own}, though there is {later}"

  def _find_lost_copies(self) -> Iterator[tuple[float, str]]:
    excused, trained = self.plan.excused(), set()
    newest: dict[object, cluster_lib.State] = {}  # Of each worker.
    lives = []  # In order.
    for event in self.trace:
      if isinstance(event, cluster_lib.Ended):
        if event.is_lost and event.worker in trained and event.host not in self._excused():
          yield event.secs, f"copies: {event.host} ends: {event.error or event.reason}"
      if not isinstance(event, cluster_lib.State):
        continue
      newest[event.worker] = event
      if not event.is_commit:
        continue
      trained.add(event.worker)
      others = [newest[w] for w in event.alive if w in newest]
      if event.life not in lives:
        lives.append(event.life)
        for other in others:
          if other.steps > 0 and other.life != event.life and other.host not in excused:
            yield event.secs, f"copies: {_describe(event)}, and {other.host} was further"
      elif event.life != lives[-1] and any(other.life == lives[-1] for other in others):
        if event.host not in excused:
          yield event.secs, f"copies: {_describe(event)} of an older run"

  def _find_growth(self) -> Iterator[tuple[float, str]]:
    for host, machine in self.machines.items():
      if machine.is_alive and machine.agent.num_kept > _MOST_KEPT:
        yield self.clock.now, f"bounds: {host} keeps {machine.agent.num_kept} values"

  # How it ends.

  def _find_unsettled(self) -> Iterator[str]:
    """Yields what still has to come."""
    # Who is no member needs the judge; who hangs does nothing any more.
    cut_off = {h for h in self.machines if self.place.left_secs("cut off", h)}
    alive = {
        h: m
        for h, m in self.machines.items()
        if m.is_alive and not m.is_hung and (m.is_at_work or h not in cut_off)
    }
    excused, has_end = self._excused(), bool(self.plan.num_steps)
    for host, machine in self.machines.items():
      end = machine.ended
      # A newcomer may give up a judge that is away for long.
      if end and not machine.is_dead and host not in excused and not isinstance(end.error, OSError):
        if end.error or end.reason:
          yield f"accuracy: {host} ended: {end.error or end.reason}"
    if has_end:
      if self._is_enough():
        yield from (f"end: {host} lives" for host in alive if host not in excused | cut_off)
      if self._last_secs():
        return
    elif alive and self._is_enough() and not self._is_recent():
      yield f"progress: no step since {self._last_secs():.2f} s"
    numbers = {h: m.agent.roster.view.number for h, m in alive.items()}
    # Who hangs may know an older life.
    newest = max((n for h, n in numbers.items() if not alive[h].process.is_stopped), default=0)
    there = self.place.newest_view()
    if there != newest and any(m.is_at_work for h, m in alive.items() if h not in cut_off):
      yield f"view: the records have {there}, and not {newest}"
    for host, machine in alive.items():
      is_in = machine.agent.roster.is_member and numbers[host] == newest
      if not has_end and host not in excused and not is_in:
        yield f"accuracy: {host} is no member of view {newest}"

  def commits(self) -> Iterable[cluster_lib.State]:
    return (event for event in self._events(cluster_lib.State) if event.is_commit)

  def _last_secs(self) -> float:
    return max((event.secs for event in self.commits()), default=0.0)

  def _is_recent(self) -> bool:
    return self._last_secs() > self.clock.now - _RECENT_SECS

  def _is_enough(self) -> bool:
    """Whether training need not wait for more nodes."""
    machines = self.machines.values()
    newest = max((m.agent.roster.view for m in machines), key=lambda view: view.number)
    if newest.number and not newest.members:  # All nodes restart.
      return any(m.is_alive and not m.is_hung for m in machines)
    return any(not self.machines[m.host].is_dead for m in newest.members)

  def _excused(self) -> set[str]:
    """Returns the hosts that the others may go on without.

    Once all begin anew nobody is a newcomer, so either end of a bad route.
    """
    ends = [f.hosts for f in self.plan.faults if f.kind == "bad_route"]
    have_begun_anew = len({event.life for event in self.commits()}) > 1
    return self.plan.excused() | self.late.union(*ends if have_begun_anew else ())


def _describe(event: cluster_lib.State) -> str:
  return f"node {event.worker.number} in view {event.view.number} commits step {event.steps}"


def explore(plan: plans.FaultPlan) -> list[str]:
  """Returns the violations of a plan; a failure of an agent is one."""
  history = ClusterHistory(plan)
  try:
    return history.run()
  except _FAILURES as error:
    return [f"{history.clock.now:.2f} s: failure: {error!r}"]
  finally:
    for process in history.clock.processes:
      process.kill()


def shrink(plan: plans.FaultPlan) -> plans.FaultPlan:
  """Returns a smaller plan with a violation of the same invariant."""
  name = lambda text: text.split()[2]
  wanted = name(explore(plan)[0])
  return plans.shrink(plan, lambda p: wanted in {name(text) for text in explore(p)})
