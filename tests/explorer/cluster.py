"""A cluster of simulated hosts, each with the real `Agent` and a worker, and what they do."""

import asyncio
from collections.abc import Iterator
import contextlib
import dataclasses
import itertools
import random
from typing import Any

from bamboo_jax import base, config
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import agent as agent_lib
from tests.explorer import (
    loop as loop_lib,
    mesh as mesh_lib,
    place as place_lib,
    worker as worker_lib,
)

_AGAIN_SECS = 0.1  # Until an agent that begins again is there.
_ZONES = "abc"
_LIMITS = config.ClusterSection(heartbeat_secs=0.25, no_progress_secs=10.0, start_silence_secs=15.0)


@dataclasses.dataclass(frozen=True)
class Event:
  """Something that has happened; `host` is where, "" for the records."""

  secs: float
  host: str


@dataclasses.dataclass(frozen=True)
class Said(Event):
  """A line of a log."""

  text: str


@dataclasses.dataclass(frozen=True)
class Adopted(Event):
  """An agent knows these views; or the records do."""

  views: tuple[views.View, ...]


@dataclasses.dataclass(frozen=True)
class State(Event):
  """A worker has a state: it has committed a step, or taken over what others have.

  Attributes:
    life: Stamp of the run, and the view in which training was begun anew.
    view: The view that the worker works in.
    alive: The workers that live.
  """

  worker: worker_lib.Worker
  life: tuple[str, int]
  view: views.View
  steps: int
  state: str
  is_commit: bool
  alive: frozenset[worker_lib.Worker]


@dataclasses.dataclass(frozen=True)
class Ended(Event):
  """An agent has ended: with a reason, "" if all is done, or an error.

  Attributes:
    is_lost: Whether what its worker has is lost, or was when that ended by itself.
  """

  reason: str
  error: Exception | None
  worker: worker_lib.Worker
  is_lost: bool


class Cluster:
  """Hosts, the network and the place that they share, and the trace of what they do.

  Attributes:
    hosts: Those that have come, and those to come.
    late: Whose workers were killed when others were done.
    saved: Steps and state of checkpoints.
  """

  def __init__(self, plan: Any) -> None:
    """Nobody has come yet; `plan` is a `plans.FaultPlan`."""
    self.plan, self.num_steps = plan, plan.num_steps or 1 << 30
    self.clock, self.random = loop_lib.Clock(), random.Random(plan.seed)
    self.process = loop_lib.Process(self.clock)  # Of who makes faults.
    self.network = mesh_lib.Network(self.clock, self.random)
    on_made = lambda view: self.trace.append(Adopted(self.clock.now, "", (view,)))
    self.place = place_lib.Place(self.clock, plan.seed, on_made)
    self.machines: dict[str, Machine] = {}
    self.hosts = {f"n{i}" for i in range(plan.num_nodes)}
    self.hosts.update(*(fault.hosts for fault in plan.faults))
    self.late: set[str] = set()
    self.saved: dict[int, str] = {}
    self.trace: list[Event] = []
    self.lives = itertools.count()

  def come(self, host: str, **given: Any) -> None:
    """A host comes; `given` are options of its agent."""
    plan = self.plan
    own = dict(gather_secs=plan.gather_secs, no_progress_secs=plan.no_progress_secs)
    told: dict[str, Any] = dict(
        name=host,
        zone=_ZONES[int(host[1:]) % len(_ZONES)],
        workdir="workdir",
        host=host,
        num_nodes=plan.num_nodes,
        place=lambda zones: {ticket: ticket for ticket in zones},
        config={"seed": 0},
        command=(),
        log="",
        limits=dataclasses.replace(_LIMITS, **own),
    )
    self.machines[host] = Machine(self, agent_lib.AgentOptions(**told | given))

  def log(self, host: str, text: str) -> None:
    """Adds a line to the trace."""
    self.trace.append(Said(self.clock.now, host, text))

  async def hold(self, fault: contextlib.AbstractContextManager[None], secs: float) -> None:
    """Has something be wrong for a while."""
    with fault:
      await asyncio.sleep(secs)

  def find_saved(self) -> tuple[int, str]:
    """Returns what the newest checkpoint has."""
    steps = max(self.saved, default=0)
    return steps, self.saved.get(steps, "start")

  def is_gone(self, host: str) -> bool:
    """Whether the worker of a host is gone, so that a transfer with it fails."""
    machine = self.machines.get(host)
    return machine is not None and host not in self.network.silent and not machine.worker.is_alive

  def note_state(self, worker: worker_lib.Worker, *, is_commit: bool) -> None:
    """Adds the state of a worker to the trace."""
    life, view = (worker.stamp, worker.epoch), worker.client.adopted
    alive = frozenset(m.worker for m in self.machines.values() if m.worker.is_alive)
    what = (worker, life, view, worker.steps, worker.state, is_commit, alive)
    self.trace.append(State(self.clock.now, worker.host, *what))


class Machine:
  """A host with an agent and its worker.

  Attributes:
    agent: The agent that lives or lived last; `worker` and `process` are its.
    ended: How it ended, None while it lives.
    is_dead: Whether the processes or the machine are gone.
    is_hung: Whether all is stopped for good.
    freeze_secs: For how long all are stopped once the next record is made: nothing has
      followed from it by then.
  """

  def __init__(self, cluster: Cluster, options: agent_lib.AgentOptions) -> None:
    self.cluster, self.host = cluster, options.host
    # Clocks of machines have nothing in common.
    self._ahead_secs = random.Random(f"clock {options.host}").uniform(0.0, 1e5)
    self.is_dead = self.is_hung = False
    self.freeze_secs = 0.0
    self._begin(options)

  @property
  def is_alive(self) -> bool:
    """Whether there is an agent."""
    return not self.is_dead and self.ended is None

  @property
  def is_at_work(self) -> bool:
    """Whether its worker is a member."""
    return self.worker.is_alive and self.agent.roster.is_member

  # What may happen to it.

  def kill(self) -> None:
    """Agent and worker are killed; the host closes their connections."""
    self._die()
    self.cluster.network.close(self.host)

  def vanish(self) -> None:
    """The machine is gone, and nobody is told."""
    self._die()
    self.cluster.network.silent.add(self.host)

  def kill_worker(self, code: int = -9) -> None:
    """The worker ends."""
    self.worker.end(code)

  def stop_worker(self) -> None:
    """SIGSTOP of the worker."""
    self.worker.process.is_stopped = True

  def hang(self) -> None:
    """All processes are stopped, for good."""
    self.is_hung = self.process.is_stopped = True
    self.stop_worker()

  @contextlib.contextmanager
  def frozen(self, *, is_all: bool = True) -> Iterator[None]:
    """All processes are stopped for a while, or only the agent."""
    self.process.is_stopped = True
    if is_all:
      self.stop_worker()
    yield
    if not self.is_hung:
      self.process.cont()
      self.worker.process.cont()

  def notice(self) -> None:
    """The node will be preempted."""
    self.process.tell(self.agent._take_notice, "SIGTERM")

  def _die(self) -> None:
    self.is_dead = True
    self.process.kill()
    self.worker.kill()

  # The life of an agent.

  def _begin(self, options: agent_lib.AgentOptions) -> None:
    if self.is_dead:
      return
    cluster, life = self.cluster, next(self.cluster.lives)
    self.ended: Ended | None = None
    self.process = loop_lib.Process(cluster.clock, ahead_secs=self._ahead_secs)
    self.process.is_stopped = self.is_hung
    self.worker = worker_lib.Worker(self)
    incarnation = f"{options.name}#{life}"
    mesh = mesh_lib.Mesh(cluster.network, self.process, self.host, 1000 + life, incarnation)
    self.agent = agent_lib.Agent(
        options,
        incarnation=incarnation,
        judge=self._ask,
        mesh=mesh,
        worker=self.worker,
        log=self._log,
    )
    self.process.start(self._live, self.agent, self.worker)

  async def _live(self, agent: agent_lib.Agent, worker: worker_lib.Worker) -> None:
    reason, error = "", None
    try:
      reason = await agent.run()
    except (OSError, ValueError, base.RunFailedError) as failure:
      error = failure
    is_lost = (agent.must_restart or error is not None) and (worker.code or 0) >= 0
    self.ended = Ended(self.cluster.clock.now, self.host, reason, error, worker, is_lost)
    self.cluster.trace.append(self.ended)
    self.cluster.log(self.host, f"{agent.incarnation}: ends: {error or repr(reason)}")
    if agent.must_restart:
      options = dataclasses.replace(agent.options, is_again=True)
      self.cluster.clock.at(_AGAIN_SECS, self._begin, options)

  def _log(self, level: int, text: str, *args: Any) -> None:
    self.cluster.log(self.host, f"{self.agent.incarnation}: {text % args}")
    if text.startswith("View "):
      known = tuple(self.agent.roster.recent_views())
      self.cluster.trace.append(Adopted(self.cluster.clock.now, self.host, known))

  async def _ask(self, function: Any, *args: Any) -> Any:
    """Calls a function with the records."""
    try:
      return await self.cluster.place.call(self.host, function, *args)
    finally:
      if self.freeze_secs and function.__name__.startswith("make"):
        secs, self.freeze_secs = self.freeze_secs, 0.0
        self.cluster.process.start(self.cluster.hold, self.frozen(), secs)
        await asyncio.sleep(0)
