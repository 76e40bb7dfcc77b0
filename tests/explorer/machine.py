"""A machine: the real `Agent`, on a loop in virtual time and in a simulated world, and a worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
import contextlib
import dataclasses
import functools
import random
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import messages, views
from bamboo_jax.cluster.agent import agent as agent_lib, mesh as mesh_lib
from tests.explorer import (
    clock as clock_lib,
    judge as judge_lib,
    network as network_lib,
    worker as worker_lib,
    world as world_lib,
)

_EXIT_SECS = 0.05  # At most, until an agent sees its worker's exit.
_PIPE_SECS = 0.0001
_EVENT_SECS = 0.002  # For an event, while others wait.


@dataclasses.dataclass(frozen=True)
class Ended:
  """How an agent has ended: with a reason, "" if all is done, or an error."""

  reason: str
  error: BaseException | None


class SimulatedMachine:
  """A host with an agent and its worker.

  Attributes:
    agent: The agent that lives or lived last.
    ended: How the last agent ended, None while one lives.
    is_dead: Whether the processes or the machine are gone.
    worker: The worker that lives; else None.
    left: The worker of this agent that has ended by itself.
  """

  def __init__(self, world: world_lib.World, options: agent_lib.AgentOptions) -> None:
    self.world = world
    self.host = options.host
    # Clocks of machines have nothing in common.
    self._ahead_secs = random.Random(f"clock {options.host}").uniform(0.0, 1e5)
    self.is_dead = self.is_frozen = self.is_hung = False
    self.worker: worker_lib.ScriptedWorker | None = None
    self.left: worker_lib.ScriptedWorker | None = None
    self._freeze_after: tuple[str, float] = ("", 0.0)
    self._backlog: list[tuple[Any, ...]] = []  # What has come meanwhile.
    self._lives: list[Any] = []  # Kept, so that tasks of killed processes do not run on.
    self._begin(options)

  @property
  def is_alive(self) -> bool:
    """Whether there is an agent."""
    return not self.is_dead and self.ended is None

  @property
  def is_at_work(self) -> bool:
    """Whether its worker is a member."""
    return self.worker is not None and self.agent.roster.is_member

  # What may happen to it.

  def kill(self) -> None:
    """Agent and worker are killed; the host closes their connections."""
    self._die()
    self.world.network.close(self.host)

  def vanish(self) -> None:
    """The machine is gone, and nobody is told."""
    self._die()
    self.world.network.silent.add(self.host)

  def kill_worker(self, code: int = -9) -> None:
    """The worker ends."""
    if self.worker is not None:
      self.worker.end()
      self._worker_exited(self.agent, code)

  def freeze(self, *, is_all: bool = True) -> None:
    """All processes are stopped, or only the agent."""
    self.is_frozen = True
    self.world.network.asleep.setdefault(self.host, [])
    if is_all:
      self.stop_worker()

  def freeze_after(self, method: str, secs: float) -> None:
    """All are stopped once a call is done; nothing has followed from it."""
    self._freeze_after = method, secs

  def hang(self) -> None:
    """All processes are stopped, for good."""
    self.freeze()
    self.is_hung = True

  def thaw(self) -> None:
    """All processes run again, unless it hangs."""
    if self.is_hung:
      return
    self.is_frozen = False
    if self.worker is not None:
      self.worker.wake()
    self._catch_up()
    for answer in self.world.network.asleep.pop(self.host, ()):
      if not self.is_dead:
        answer()

  def _catch_up(self) -> None:
    """Handles what has come one by one, so its worker may be faster."""
    if not self.is_frozen:
      if self._backlog:
        agent, *call = self._backlog.pop(0)
        if agent is self.agent:
          self.loop.call_soon(*call)
        self.world.clock.at(_EVENT_SECS, self._catch_up)
      self.step()

  def stop_worker(self) -> None:
    """SIGSTOP of the worker."""
    if self.worker is not None:
      self.worker.is_stopped = True

  def give_notice(self) -> None:
    """The node will be preempted."""
    self.tell(self.agent, self.agent._take_notice, "SIGTERM")

  def _die(self) -> None:
    self.is_dead = True
    if self.worker is not None:
      self.worker.end()
    self.worker = None

  # The life of an agent.

  def _begin(self, options: agent_lib.AgentOptions) -> None:
    if self.is_dead:
      return
    life = next(self.world.lives)
    self.ended: Ended | None = None
    self.left = None
    self.loop = clock_lib.VirtualLoop(lambda: self.world.clock.now + self._ahead_secs)
    self._wake_secs = float("inf")
    incarnation = f"{options.name}#{life}"
    self.agent = agent_lib.Agent(
        options,
        incarnation=incarnation,
        judge=self._ask_judge,
        mesh=_Mesh(self, 1000 + life),
        worker=_Process(self),
        log=lambda level, text, *args: self.world.log(f"{incarnation}: {text % args}"),
    )
    self._run = self.loop.create_task(self.agent.run())
    self._lives.append((self.loop, self.agent, self._run))
    self.step()

  def tell(self, agent: agent_lib.Agent, call: Callable[..., Any], *args: Any) -> None:
    """Something happens to an agent, unless it has ended."""
    if agent is not self.agent or self.is_dead:
      return
    if self.is_frozen or self._backlog:
      self._backlog.append((agent, call, *args))
    else:
      self.loop.call_soon(call, *args)
      self.step()

  def later(self, secs: float, call: Callable[..., Any], *args: Any) -> None:
    """Something happens to the agent of now, later."""
    self.world.clock.at(secs, self.tell, self.agent, call, *args)

  def step(self) -> None:
    """Runs the agent as far as it comes by now."""
    if self.is_dead or self.is_frozen or self._run.done():
      return
    loop, known = self.loop, self.agent.roster.view
    due = loop.run_without_timers() if self._backlog else loop.run_due()
    if self.agent.roster.view is not known:
      self.world.on_adopt(self)
    self.note_end()
    if self._run.done():
      if self._run.exception() is not None and not isinstance(
          self._run.exception(), (OSError, ValueError, base.RunFailedError)
      ):
        raise self._run.exception()  # type: ignore[misc]
      if self.agent.must_restart:
        options = dataclasses.replace(self.agent.options, is_again=True)
        self.world.clock.at(0.1, self._begin, options)
    elif due is not None and due < self._wake_secs:
      self._wake_secs = due
      self.world.clock.at(max(0.0, due - loop.time()), self._wake, loop, due)

  def _wake(self, loop: clock_lib.VirtualLoop, due: float) -> None:
    if loop is self.loop and due == self._wake_secs:
      self._wake_secs = float("inf")
      self.step()

  def note_end(self) -> None:
    """Tells once how the agent has ended, while its worker is there."""
    if self.ended is None and self.agent.is_ending:
      end = self.agent._end
      error = end.exception()
      self.ended = Ended("" if error else end.result(), error)
      self.world.log(f"{self.agent.incarnation}: ends: {error or self.ended.reason!r}")
      self.world.on_end(self)

  def _ask_judge(self, function: Any, *args: Any) -> Awaitable[Any]:
    """Calls a function with the records, each call of the judge in its time."""
    answer, agent = self.loop.create_future(), self.agent

    def go_on(*answers: Any) -> None:
      call, result, error = judge_lib.carry_on(function, args, answers)
      if call is not None:
        then = lambda found: self.tell(agent, go_on, *answers, found)
        self.world.shared.judge.call(self.host, call, then)
        return
      if function.__name__.startswith(self._freeze_after[0] or "-"):
        self.world.clock.at(self._freeze_after[1], self.thaw)
        self._freeze_after = "", 0.0
        self.freeze()
        self._backlog.append((agent, settle, answer, result, error))
        return
      settle(answer, result, error)

    go_on()
    return answer

  def _worker_exited(self, agent: agent_lib.Agent, code: int) -> None:
    if agent is self.agent:
      self.left = self.worker if code >= 0 else None
      self.worker = None
      secs = self.world.random.uniform(_PIPE_SECS, _EXIT_SECS)
      self.later(secs, settle, self.agent._worker_process.exit, code)


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
  """Sets the result of a future, or its error, if somebody waits for it still."""
  if not future.done():
    if error is None:
      future.set_result(result)
    else:
      future.set_exception(error)


class _Process:
  """As `worker_process.WorkerProcess`."""

  def __init__(self, machine: SimulatedMachine) -> None:
    self._machine = machine
    self.exit = machine.loop.create_future()

  async def start(
      self, command: Sequence[str], *, log: str, on_message: Callable[[Any], None]
  ) -> None:
    machine = self._machine
    number, stamp, _ = command
    machine.worker = worker_lib.ScriptedWorker(
        base.NodeId(int(number)),
        stamp,
        host=machine.host,
        clock=machine.world.clock,
        shared=machine.world.shared,
        say=functools.partial(machine.later, _PIPE_SECS, on_message),
        exit=functools.partial(machine._worker_exited, machine.agent),
    )

  async def wait(self) -> int:
    code: int = await self.exit
    return code

  def send(self, message: Any) -> None:
    if self._machine.worker is not None:
      self._machine.world.clock.at(_PIPE_SECS, self._hear, message)

  def _hear(self, message: Any) -> None:
    if (worker := self._machine.worker) is not None:
      worker.hear(message)

  def is_stopped(self) -> bool:
    worker = self._machine.worker
    return worker is not None and worker.is_stopped

  def is_busy(self) -> bool:
    return False

  def reap_orphans(self) -> None:
    """There are none."""

  def kill_hanging(self) -> None:
    self._machine.kill_worker()

  def kill(self) -> None:
    machine = self._machine
    machine.note_end()
    if machine.worker is not None:
      machine.worker.end()
      machine.worker = None

  async def close(self) -> None:
    """It has been killed."""


class _Mesh:
  """As `mesh.Mesh`."""

  def __init__(self, machine: SimulatedMachine, port: int) -> None:
    self._machine, self._port = machine, port
    self._links: dict[str, network_lib.SimulatedLink] = {}
    self._refused: set[str] = set()  # When last tried.
    self._left: set[str] = set()

  def listen(
      self,
      host: str,
      *,
      hello: Callable[[], messages.Hello],
      on_came: Callable[[views.Member], None],
      on_message: Callable[[str, Any], None],
  ) -> int:
    machine, agent = self._machine, self._machine.agent

    def accept(caller: tuple[views.Member, str]) -> Callable[[Any], None] | None:
      member, stamp = caller
      if stamp != hello().stamp:
        return None  # It is of another run.
      machine.later(0.0, on_came, member)
      return lambda message: machine.tell(agent, on_message, member.incarnation, message)

    machine.world.network.listeners[host, self._port] = accept
    return self._port

  @contextlib.asynccontextmanager
  async def connect(
      self, member: views.Member, on_accepted: Callable[[], None]
  ) -> AsyncIterator[Awaitable[str]]:
    other, now = member.incarnation, self._machine.loop.time
    end_secs = now() + mesh_lib._BREAKS_SECS
    while True:
      opened, closed = self._dial(member, on_accepted)
      try:
        link = self._links[other] = await opened
        break
      except ConnectionResetError:  # While the agent says nothing yet.
        if now() > end_secs:
          raise
        await asyncio.sleep(mesh_lib._BROKE_SECS)
    try:
      yield closed
    finally:
      link.drop()
      if self._links.get(other) is link:
        del self._links[other]

  def _dial(
      self, member: views.Member, on_accepted: Callable[[], None]
  ) -> tuple[asyncio.Future[network_lib.SimulatedLink], asyncio.Future[str]]:
    """Dials once; returns what the connection, and its end, will be told to."""
    machine, agent, other = self._machine, self._machine.agent, member.incarnation
    opened: asyncio.Future[network_lib.SimulatedLink] = machine.loop.create_future()
    closed: asyncio.Future[str] = machine.loop.create_future()

    def accepted() -> None:
      if other in self._refused:
        self._refused.remove(other)
        on_accepted()

    def open_link(link: network_lib.SimulatedLink) -> None:
      if opened.done():
        link.drop()
      else:
        opened.set_result(link)

    def failed(reason: str, is_refused: bool) -> None:
      if is_refused:
        self._refused.add(other)
      settle(opened, None, (mesh_lib.GoneError if is_refused else OSError)(reason))

    def close(reason: str) -> None:
      settle(opened, None, ConnectionResetError(reason))
      settle(closed, reason)

    tell = functools.partial(machine.tell, agent)
    machine.world.network.dial(
        machine.host,
        (member.host, member.port),
        (agent.roster.own, agent.stamp),
        on_accepted=functools.partial(tell, accepted),
        on_open=functools.partial(tell, open_link),
        on_failed=functools.partial(tell, failed),
        on_closed=functools.partial(tell, close),
    )
    return opened, closed

  def send(self, message: Any, to: Iterable[str] | None = None) -> None:
    message = network_lib.copy(message)
    for incarnation in list(self._links) if to is None else to:
      if (link := self._links.get(incarnation)) is not None:
        link.send(message)

  def forget(self, incarnation: str) -> None:
    if (link := self._links.pop(incarnation, None)) is not None:
      link.drop()

  async def close(self) -> None:
    self._machine.world.network.close(self._machine.host)
