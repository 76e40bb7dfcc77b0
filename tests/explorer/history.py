"""Carries out a plan on a simulated cluster, and finds violated invariants.

The invariants; each is a function of the trace, or of its end:

  one         all agents that adopt a view of some number adopt the same, which the records
              keep
  state       all that commit a step in one life have the same state after it
  fence       no worker commits in a view well after others have in a later one, nor in a life
              well after a later one has begun, unless it cannot know
  copies      no worker restores a checkpoint while another has the state, and no agent ends
              with the last copy of it
  accuracy    a node is removed only if a fault excuses it, see `FaultPlan.excused`
  progress    steps are committed again soon after the last fault
  end         all agents end without error once the last step is done
  view        in the end all know the newest view
  bounds      the number of values that an agent keeps does not grow
"""

import asyncio
from collections.abc import Iterator
import contextlib
import dataclasses
import itertools
import math
from typing import Any, TypeVar

from bamboo_jax import config
from bamboo_jax.cluster import views
from tests.explorer import (
    loop as loop_lib,
    mesh as mesh_lib,
    place as place_lib,
    plans,
    worker as worker_lib,
)
from tests.explorer.worker import Ended, State

_FENCE_SECS = 3.0  # Agents look at the views every 2 s.
_SETTLE_SECS = 8.0  # After the last fault, before a history may end well.
_PATIENCE_SECS = 45.0  # Before it must have; a dead run is asked for 20 s.
_RECENT_SECS = 2.0
_MOST_KEPT = 60
_AWAY_SECS = 1.4  # A crowded machine is away for most heartbeats, but not for long.
_ZONES = "abc"
_LIMITS = config.ClusterSection(heartbeat_secs=0.25, no_progress_secs=10.0, start_silence_secs=15.0)
_REFUSING = ("refuse", "refuse_all", "bad_route")
_T = TypeVar("_T")


class ClusterHistory:
  """The hosts, the network and the place of a simulated cluster, and a trace of what they do.

  Attributes:
    hosts: All, with those that join later.
    late: Hosts whose workers were killed when others were done.
    saved: Steps and state of checkpoints.
    trace: Time, host ("" for the records), and event: a line of a log, the views that an agent
      or the records have, the `State` of a worker, or how an agent `Ended`.
  """

  def __init__(self, plan: plans.FaultPlan) -> None:
    """Schedules the starts of all hosts, and the faults."""
    self.plan, self.num_steps = plan, plan.num_steps or 1 << 30
    own = dict(gather_secs=plan.gather_secs, no_progress_secs=plan.no_progress_secs)
    self._limits = dataclasses.replace(_LIMITS, **own)
    self.clock = loop_lib.Clock(plan.seed)
    self.process = loop_lib.Process(self.clock)  # In which faults are made.
    self.network = mesh_lib.Network(self.clock)
    self.place = place_lib.Place(self.clock, lambda view: self.note("", (view,)))
    self.machines: dict[str, worker_lib.Machine] = {}
    first = [f"n{i}" for i in range(plan.num_nodes)]
    self.hosts = {*first}.union(*(fault.hosts for fault in plan.faults))
    self.late: set[str] = set()
    self.saved: dict[int, str] = {}
    self.trace: list[tuple[float, str, Any]] = []
    self.lives = itertools.count()
    for host in first:
      self.clock.at(self.clock.random.uniform(0.0, 0.3), self.start, host)
    for fault in plan.faults:
      if fault.kind == "join":
        self.clock.at(fault.at_secs, self.start, *fault.hosts)
      else:
        self.process.start(self._suffer, fault)

  def start(self, host: str, *, name: str = "") -> None:
    """Starts a host, whose node has this name, or the name of the host."""
    options = worker_lib.make_options(
        name or host,
        zone=_ZONES[int(host[1:]) % len(_ZONES)],
        host=host,
        num_nodes=self.plan.num_nodes,
        limits=self._limits,
    )
    self.machines[host] = worker_lib.Machine(self, options)

  def note(self, host: str, what: Any) -> None:
    """Adds an event to the trace."""
    self.trace.append((self.clock.now, host, what))

  def events(self, kind: type[_T]) -> Iterator[tuple[float, str, _T]]:
    """Yields the events of a type."""
    return ((secs, host, what) for secs, host, what in self.trace if isinstance(what, kind))

  def commits(self) -> Iterator[tuple[float, str, State]]:
    return (event for event in self.events(State) if event[2].is_commit)

  def find_saved(self) -> tuple[int, str]:
    """Returns steps and state of the newest checkpoint."""
    steps = max(self.saved, default=0)
    return steps, self.saved.get(steps, "start")

  def is_gone(self, host: str) -> bool:
    """Whether transfers with a host fail, as its worker is gone."""
    machine = self.machines.get(host)
    return machine is not None and host not in self.network.silent and not machine.worker.is_alive

  async def hold(self, fault: contextlib.AbstractContextManager[None], secs: float) -> None:
    """Keeps a fault up for some seconds, or, with 0, for good."""
    with fault:
      await asyncio.sleep(secs or math.inf)

  async def _suffer(self, fault: plans.SimFault) -> None:
    """Carries out a fault other than a join, at its time."""
    await asyncio.sleep(fault.at_secs)
    self.note("", f"{fault}")
    network, kind, hosts, secs = self.network, fault.kind, fault.hosts, fault.secs
    machines = [self.machines[h] for h in hosts if h in self.machines]
    if len(machines) < len(hosts) and kind not in ("bad_route", "apart"):
      return  # Hosts that have not joined yet are spared.
    match kind:
      case "kill" | "vanish" | "hang" | "stop_worker" | "notice":
        getattr(machines[0], kind)()
      case "worker" | "all_workers":
        for machine in machines or self.machines.values():
          if any(m.agent.is_done for m in self.machines.values()):
            self.late.add(machine.host)  # It cannot finish.
          machine.kill_worker()
      case "freeze_make":
        machines[0].freeze_secs = secs
      case "freeze" | "freeze_agent":
        await self.hold(machines[0].frozen(is_all=kind == "freeze"), secs)
      case "busy":
        for _ in range(math.ceil(secs / (2 * _AWAY_SECS))):
          await self.hold(machines[0].frozen(), _AWAY_SECS)
          await asyncio.sleep(_AWAY_SECS)
      case "late" | "late_effect":
        self.place.late[hosts[0]] = secs, kind == "late_effect"
      case "torn":
        await self.hold(self.place.tear(), secs)
      case kind if kind in place_lib.TROUBLES:
        for host in hosts or sorted(self.hosts):
          self.place.suffer(kind, host, secs)
      case "reset":
        network.reset(*hosts)
      case "no_files":
        await self.hold(network.suffer(network.crowded, hosts), secs)
      case _:
        pairs = {hosts}
        if kind in ("cut_all", "refuse_all"):
          pairs = {*itertools.permutations(self.hosts, 2)}
        elif kind in ("isolate", "slow", "apart"):
          pairs = {(one, h) for one in hosts for h in self.hosts - {*hosts}}
        if kind != "cut_one_way":
          pairs |= {pair[::-1] for pair in pairs}
        if kind in ("refuse", "refuse_all"):
          for pair in sorted(pairs):
            network.reset(*pair)
        of_kind = {"slow": network.slow, **dict.fromkeys(_REFUSING, network.refused)}
        await self.hold(network.suffer(of_kind.get(kind, network.cut), pairs), secs)

  def close(self) -> None:
    """Ends all processes."""
    for process in self.clock.processes:
      process.close()

  # The invariants.

  def run(self) -> list[str]:
    """Runs the plan; returns the violations."""
    self.clock.run(self.plan.end_secs + _SETTLE_SECS)
    # Busy machines are away half of the time.
    factor = 2.0 if any(fault.kind == "busy" for fault in self.plan.faults) else 1.0
    end_secs = self.plan.end_secs + factor * _PATIENCE_SECS
    while not (found := self.find_violations()) and (left := [*self._find_unsettled()]):
      if self.clock.now >= end_secs and not (self.plan.num_steps and self._is_recent()):
        return [f"{self.clock.now:.2f} s: {text}" for text in left]
      self.clock.run_for(1.0)
    return found

  def find_violations(self) -> list[str]:
    """Returns the violations so far, as `TIME s: INVARIANT: DETAILS`."""
    checks = self._find_views, self._find_states, self._find_fenced, self._find_lost_copies
    return [
        f"{secs:.2f} s: {text}" for check in (*checks, self._find_growth) for secs, text in check()
    ]

  def _find_views(self) -> Iterator[tuple[float, str]]:
    known: dict[int, views.View] = {}
    for secs, host, found in self.events(tuple):
      for view in found:
        if known.setdefault(view.number, view) != view:
          yield secs, f"one: {host} has {view}, others {known[view.number]}"
    for number, view in known.items():
      if (there := self.place.find_view(number)) != view:
        yield self.clock.now, f"one: view {number} was {view}, and is {there} in the records"

  def _find_states(self) -> Iterator[tuple[float, str]]:
    excused = self.plan.excused()  # The last step of one may be unknown to others.
    known: dict[tuple[object, int], str] = {}
    for secs, host, own in self.commits():
      if host not in excused and known.setdefault((own.life, own.steps), own.state) != own.state:
        yield secs, f"state: {_describe(own)} of another run"

  def _find_fenced(self) -> Iterator[tuple[float, str]]:
    late_secs = _FENCE_SECS + self.plan.away_secs
    begun = {
        found[0].number: secs
        for secs, host, found in self.events(tuple)
        if not host and not found[0].members
    }
    first: dict[int, float] = {}  # The first commit in a view.
    for secs, _, own in self.commits():
      first.setdefault(own.view.number, secs)
      for what, number, known in (
          ("life", own.view.epoch, begun),
          ("view", own.view.number, first),
      ):
        if later := [n for n, since in known.items() if n > number and since < secs - late_secs]:
          yield secs, f"fence: {_describe(own)}, {what} {number}, though there is {later}"

  def _find_lost_copies(self) -> Iterator[tuple[float, str]]:
    excused, trained = self.plan.excused(), set()
    newest: dict[worker_lib.Worker, State] = {}
    lives = []  # In order.
    for secs, host, what in self.trace:
      if isinstance(what, Ended):
        if what.is_lost and what.worker in trained and host not in self._excused():
          yield secs, f"copies: {host} ends: {what.error or what.reason}"
      if not isinstance(what, State):
        continue
      newest[what.worker] = what
      if not what.is_commit:
        continue
      trained.add(what.worker)
      others = [newest[w] for w in what.alive if w in newest]
      if what.life not in lives:
        lives.append(what.life)
        for other in others:
          if other.steps > 0 and other.life != what.life and other.worker.host not in excused:
            yield secs, f"copies: {_describe(what)}, and {other.worker.host} was further"
      elif what.life != lives[-1] and any(other.life == lives[-1] for other in others):
        if host not in excused:
          yield secs, f"copies: {_describe(what)} of an older run"

  def _find_growth(self) -> Iterator[tuple[float, str]]:
    for host, machine in self.machines.items():
      if machine.is_alive and machine.agent.num_kept > _MOST_KEPT:
        yield self.clock.now, f"bounds: {host} keeps {machine.agent.num_kept} values"

  def _find_unsettled(self) -> Iterator[str]:
    """Yields the conditions of a good end that do not hold yet."""
    # A node that is no member needs the judge; one that hangs does nothing.
    cut_off = {h for h in self.machines if self.place.left_secs("cut_off", h)}
    alive = {
        h: m
        for h, m in self.machines.items()
        if m.is_alive and not m.is_hung and (m.is_at_work or h not in cut_off)
    }
    excused, has_end = self._excused(), bool(self.plan.num_steps)
    for host, machine in self.machines.items():
      end = machine.ended
      # A joining node may end after a long time without the judge.
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
    # One that hangs may know an older life.
    newest = max((n for h, n in numbers.items() if not alive[h].process.is_stopped), default=0)
    there = self.place.newest_view()
    if there != newest and any(m.is_at_work for h, m in alive.items() if h not in cut_off):
      yield f"view: the records have {there}, and not {newest}"
    for host, machine in alive.items():
      is_in = machine.agent.roster.is_member and numbers[host] == newest
      if not has_end and host not in excused and not is_in:
        yield f"accuracy: {host} is no member of view {newest}"

  def _last_secs(self) -> float:
    return max((secs for secs, *_ in self.commits()), default=0.0)

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
    """Returns the hosts that may be removed.

    After a restart of all either end of a bad route may be: none is a newcomer then.
    """
    ends = [f.hosts for f in self.plan.faults if f.kind == "bad_route"]
    have_begun_anew = len({own.life for _, _, own in self.commits()}) > 1
    return self.plan.excused() | self.late.union(*ends if have_begun_anew else ())


def _describe(own: State) -> str:
  return f"node {own.worker.number} in view {own.view.number} commits step {own.steps}"


def explore(plan: plans.FaultPlan) -> list[str]:
  """Returns the violations of a plan; an exception of an agent is one."""
  history = ClusterHistory(plan)
  try:
    with contextlib.closing(history):
      return history.run()
  except Exception as error:
    return [f"{history.clock.now:.2f} s: failure: {error!r}"]


def shrink(plan: plans.FaultPlan) -> plans.FaultPlan:
  """Returns a smaller plan with a violation of the same invariant."""
  name = lambda text: text.split()[2]
  wanted = name(explore(plan)[0])
  return plans.shrink(plan, lambda p: wanted in {name(text) for text in explore(p)})
