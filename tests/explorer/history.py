"""Runs a plan on a simulated cluster, and says what was violated.

What must hold, whatever happens:

  view        one set of members for each number of a view
  one         a view that an agent has adopted is what the records say for ever
  state       all who commit a step in one life have the same state after it
  fence       nobody commits in a view well after others have in a later one,
              nor in a life well after a later one has begun, unless it cannot
              know; what nobody has checked is not written
  accuracy    a node is left out only if it is to blame, see `Plan.excused`
  copies      nobody goes back to a checkpoint while a worker has the state
  progress    steps are committed again soon after the last fault
  end         all agents end, and well, once the last step is done
  bounds      what an agent keeps does not grow
"""

import dataclasses
import random

from bamboo_jax import config
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import agent as agent_lib
from tests.explorer import (
    clock as clock_lib,
    faults,
    judge as judge_lib,
    machine as machine_lib,
    network as network_lib,
    plans,
    worker as worker_lib,
    world as world_lib,
)

_LIMITS = config.ClusterSection(heartbeat_secs=0.25, no_progress_secs=10.0, start_silence_secs=15.0)
_FENCE_SECS = 3.0  # Agents look at the views every 2 s.
_SETTLE_SECS = 15.0  # After the last fault, before a history may end well.
_PATIENCE_SECS = 40.0  # Before it must have; a dead run is asked for 20 s.
_RECENT_SECS = 2.0
_MOST_KEPT = 60
_ZONES = "abc"
_FAILURES = (AssertionError, AttributeError, LookupError, TypeError)


def make_options(host: str, plan: plans.FaultPlan) -> agent_lib.AgentOptions:
  """Returns what the agent of a host is told."""
  return agent_lib.AgentOptions(
      name=host,
      zone=_ZONES[int(host[1:]) % len(_ZONES)],
      workdir="workdir",
      host=host,
      num_nodes=plan.num_nodes,
      place=lambda zones: {ticket: ticket for ticket in zones},
      config={"seed": 0},
      command=(),
      log="",
      limits=dataclasses.replace(
          _LIMITS, gather_secs=plan.gather_secs, no_progress_secs=plan.no_progress_secs
      ),
  )


class ClusterHistory:
  """A cluster, and what happens to it."""

  def __init__(self, plan: plans.FaultPlan) -> None:
    self.plan = plan
    self.violations: list[str] = []
    clock, rng = clock_lib.SimulatedClock(), random.Random(plan.seed)
    shared = worker_lib.Shared(
        judge=judge_lib.Judge(clock, random.Random(f"judge {plan.seed}")),
        on_commit=self._note_commit,
        is_gone=self._is_gone,
        num_steps=plan.num_steps or 1 << 30,
    )
    self.world = world_lib.World(
        clock=clock,
        random=rng,
        network=network_lib.Network(clock, rng),
        shared=shared,
        on_end=self._note_end,
        on_adopt=self._note_views,
    )
    self.judge = shared.judge
    self.machines: dict[str, machine_lib.SimulatedMachine] = {}
    self._first: dict[int, float] = {}  # First commit in a view.
    self._last_secs = 0.0
    self._trained: set[worker_lib.ScriptedWorker] = set()  # Who has committed.
    self.late: set[str] = set()  # Killed when others were done.
    self._lives: list[tuple[str, int]] = []  # Stamp and epoch, in order.
    self._views: dict[int, frozenset[str]] = {}
    self._found: list[views.View] = []  # In the records.
    self._adopted: dict[int, views.View] = {}
    self._states: dict[tuple[str, int, int], str] = {}  # After a step.
    self._begun: dict[int, float] = {}  # When a life had begun.
    for i in range(plan.num_nodes):
      clock.at(rng.uniform(0.0, 0.3), self.add, f"n{i}")
    for fault in plan.faults:
      clock.at(fault.at_secs, faults.begin, self, fault)

  def run(self) -> list[str]:
    """Runs it; returns the violations."""
    end_secs = self.plan.end_secs
    limit_secs = end_secs + _PATIENCE_SECS
    self.world.clock.run(end_secs + _SETTLE_SECS)
    self.check_views()
    while not self.violations and self._unsettled():
      if self.world.clock.now >= limit_secs and not self._is_finishing():
        self.violations += self._unsettled()
        break
      self.world.clock.run(self.world.clock.now + 1.0)
      self.check_views()
    self._check_bounds()
    self._check_records()
    return self.violations

  def all_hosts(self) -> set[str]:
    """Returns those that have come, and those to come."""
    return {*self.machines, *(h for f in self.plan.faults for h in f.hosts)}

  def add(self, host: str) -> None:
    """A host comes."""
    options = make_options(host, self.plan)
    self.machines[host] = machine_lib.SimulatedMachine(self.world, options)

  # Checks.

  def violate(self, text: str) -> None:
    """Records a violation, as `invariant: what`."""
    self.violations.append(f"{self.world.clock.now:.2f} s: {text}")

  def _is_gone(self, host: str) -> bool:
    machine = self.machines.get(host)
    if machine is None or host in self.world.network.silent:
      return False
    return machine.worker is None

  def _note_end(self, machine: machine_lib.SimulatedMachine) -> None:
    """Who begins again, or gives up, loses what its worker has, or had."""
    host, end = machine.host, machine.ended
    assert end is not None, host
    has_state = (machine.worker or machine.left) in self._trained
    is_lost = machine.agent.must_restart or end.error is not None
    if has_state and is_lost and host not in self._excused():
      self.violate(f"copies: {host} ends: {end.error or end.reason}")

  def _note_commit(
      self, worker: worker_lib.ScriptedWorker, view: int, epoch: int, steps: int, state: str
  ) -> None:
    now = self._last_secs = self.world.clock.now
    self._trained.add(worker)
    who = f"node {worker.number} in view {view} commits step {steps}"
    run, own = worker.stamp, worker.client.adopted.epoch
    self._first.setdefault(view, now)
    excused = self.plan.excused()
    if host_of(self, worker) in excused:
      want = state  # It may be the last that it does, and nobody hears of it.
    else:
      want = self._states.setdefault((run, epoch, steps), state)
    if state != want:
      self.violate(f"state: {who} of another run")
    allowed_secs = now - _FENCE_SECS - self.plan.away_secs
    if begun := [e for e, secs in self._begun.items() if e > own and secs < allowed_secs]:
      self.violate(f"fence: {who}, life {own}, though {begun} have begun")
    if later := [n for n, secs in self._first.items() if n > view and secs < allowed_secs]:
      self.violate(f"fence: {who} though others are in {later}")
    workers = [m.worker for m in self.machines.values() if m.worker]
    lives = {w: (w.stamp, w.epoch) for w in workers}
    if (run, epoch) not in self._lives:
      self._lives.append((run, epoch))
      for other in workers:
        host = host_of(self, other)
        is_further = other.steps > 0 and lives[other] != (run, epoch)
        if is_further and host not in excused:
          self.violate(f"copies: {who}, and {host} was further")
    elif (run, epoch) != self._lives[-1] in lives.values():
      if host_of(self, worker) not in excused:
        self.violate(f"copies: {who} of an older run")

  def _note_views(self, machine: machine_lib.SimulatedMachine) -> None:
    """Compares the views of an agent with those of all, and with the records."""
    for view in machine.agent.roster.recent_views():
      known = self._adopted.setdefault(view.number, view)
      if known != view:
        self.violate(f"one: {machine.host} has {view}, others {known}")
    self._check_records()

  def _check_records(self) -> None:
    """Whether the records say of all views what they have said."""
    for number, view in self._adopted.items():
      if (there := self.judge.find_view(number)) != view:
        self.violate(f"one: view {number} was {view}, and is {there} in the records")

  def check_views(self) -> None:
    """Records a violation if two agents have different views of a number."""
    for number in range(len(self._found), self.judge.newest_view()):
      self._found.append(self.judge.find_view(number + 1))
      if not self._found[-1].members:
        self._begun[number + 1] = self.world.clock.now
    for machine in self.machines.values():
      view = machine.agent.roster.view
      members = frozenset(m.incarnation for m in view.members)
      known = self._views.setdefault(view.number, members)
      if known != members:
        self.violate(f"view: {view.number} is {sorted(known)} and {sorted(members)}")

  def _is_enough(self) -> bool:
    """Whether training need not wait for more nodes."""
    newest = max(
        (m.agent.roster.view for m in self.machines.values()), key=lambda view: view.number
    )
    live = [m for m in newest.members if not self.machines[m.host].is_dead]
    if newest.number and not newest.members:  # All nodes restart.
      live = [m for m in self.machines.values() if m.is_alive and not m.is_hung]
    return bool(live)

  def _is_finishing(self) -> bool:
    """Whether the last steps are being made, by those who are left."""
    return bool(self.plan.num_steps) and self._is_recent()

  def _is_recent(self) -> bool:
    return self._last_secs > self.world.clock.now - _RECENT_SECS

  def _check_bounds(self) -> None:
    for host, machine in self.machines.items():
      if machine.is_alive and machine.agent.num_kept > _MOST_KEPT:
        self.violate(f"bounds: {host} keeps {machine.agent.num_kept} values")

  def _excused(self) -> set[str]:
    """Returns the hosts that the others may go on without.

    Once all begin anew nobody is a newcomer, so either end of a bad route.
    """
    ends = [f.hosts for f in self.plan.faults if f.kind == "bad_route"]
    excused = self.plan.excused() | self.late
    return excused.union(*ends if len(self._lives) > 1 else ())

  def _unsettled(self) -> list[str]:
    """Returns what still has to come."""
    # Who is no member needs the judge; who hangs does nothing any more.
    alive = {
        h: m
        for h, m in self.machines.items()
        if m.is_alive and not m.is_hung
        if m.is_at_work or h not in self.judge.cut_off
    }
    excused = self._excused()
    found = [
        f"accuracy: {h} ended: {m.ended.error or m.ended.reason}"
        for h, m in self.machines.items()
        if not m.is_dead and m.ended is not None and h not in excused
        if m.ended.error or m.ended.reason
        # A newcomer may give up a judge that is away for long.
        if not isinstance(m.ended.error, OSError)
    ]
    if self.plan.num_steps:
      spared = excused | self.judge.cut_off.keys()
      if self._is_enough():
        found += [f"end: {h} lives" for h in alive if h not in spared]
      if self._last_secs:
        return found
    is_due = alive and self._is_enough() and not self.plan.num_steps
    if is_due and not self._is_recent():
      found.append(f"progress: no step since {self._last_secs:.2f} s")
    numbers = [m.agent.roster.view.number for m in alive.values() if not m.is_frozen]
    newest = max(numbers, default=0)  # Who hangs may know an older life.
    at_work = {h for h, m in alive.items() if m.is_at_work}
    if at_work - self.judge.cut_off.keys() and (there := self.judge.newest_view()) != newest:
      found.append(f"view: the records have {there}, and not {newest}")
    for host, machine in alive.items():
      roster = machine.agent.roster
      if host in excused or self.plan.num_steps:
        continue
      if roster.view.number != newest or not roster.is_member:
        found.append(f"accuracy: {host} is no member of view {newest}")
    return [f"{self.world.clock.now:.2f} s: {text}" for text in found]


def host_of(history: ClusterHistory, worker: worker_lib.ScriptedWorker) -> str:
  """Returns the host of a worker."""
  return next((h for h, m in history.machines.items() if m.worker is worker), "")


def explore(plan: plans.FaultPlan) -> list[str]:
  """Returns the violations of a plan; a failure of an agent is one."""
  history = ClusterHistory(plan)
  try:
    return history.run()
  except _FAILURES as error:
    return [f"{history.world.clock.now:.2f} s: failure: {error!r}"]


def shrink(plan: plans.FaultPlan) -> plans.FaultPlan:
  """Returns a smaller plan with a violation of the same invariant."""
  name = lambda text: text.split()[2]
  wanted = name(explore(plan)[0])
  return plans.shrink(plan, lambda p: wanted in {name(text) for text in explore(p)})
