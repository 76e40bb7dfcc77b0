"""A machine: the real core of an agent in a simulated shell, and a worker.

It carries out the actions of the core as `cluster.agent.agent` does.
"""

from collections.abc import Callable
import dataclasses
import functools
import random
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import core, events as events_lib, state as state_lib
from tests.explorer import (
    judge as judge_lib,
    network as network_lib,
    worker as worker_lib,
    world as world_lib,
)

_EXIT_SECS = 0.05  # At most, until an agent sees its worker's exit.
_PIPE_SECS = 0.0001
_EVENT_SECS = 0.002  # For an event, while others wait.


class SimulatedMachine:
  """A host with an agent and its worker.

  Attributes:
    state: The state of the agent, of the one that lives or lived last.
    ended: How the last agent ended, None while one lives.
    is_dead: Whether the processes or the machine are gone.
    worker: The worker that lives; else None.
    left: The worker of this agent that has ended by itself.
  """

  def __init__(self, world: world_lib.World, options: state_lib.AgentOptions) -> None:
    self.world = world
    self.host = options.host
    # Clocks of machines have nothing in common.
    self._ahead_secs = random.Random(f"clock {options.host}").uniform(0.0, 1e5)
    self.is_dead = self.is_frozen = self.is_hung = self.is_behind = False
    self.worker: worker_lib.ScriptedWorker | None = None
    self.left: worker_lib.ScriptedWorker | None = None
    self.ended: events_lib.End | None = None
    self._freeze_after: tuple[str, float] = ("", 0.0)
    self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    self._begin(options)
    self._tick()

  @property
  def is_alive(self) -> bool:
    """Whether there is an agent."""
    return not self.is_dead and self.ended is None

  @property
  def is_at_work(self) -> bool:
    """Whether its worker is a member."""
    return self.worker is not None and self.state.roster.is_member

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
      self._worker_exited(self._life, code)

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
    if self._backlog and not self.is_frozen:
      call, args = self._backlog.pop(0)
      self.is_behind = False
      call(*args)
      self.is_behind = bool(self._backlog)
      self.world.clock.at(_EVENT_SECS, self._catch_up)

  def stop_worker(self) -> None:
    """SIGSTOP of the worker."""
    if self.worker is not None:
      self.worker.is_stopped = True

  def give_notice(self) -> None:
    """The node will be preempted."""
    self._tell(events_lib.Noticed("SIGTERM"))

  def _die(self) -> None:
    self.is_dead = True
    if self.worker is not None:
      self.worker.end()
    self.worker = None

  # The life of an agent.

  def _begin(self, options: state_lib.AgentOptions) -> None:
    if self.is_dead:
      return
    life = next(self.world.lives)
    self._life = f"{options.name}#{life}"
    self._port = 1000 + life
    self.ended = self.left = None
    self.state = state_lib.AgentState(options, incarnation=self._life)
    self._links: dict[str, network_lib.SimulatedLink] = {}
    self._refused: set[str] = set()  # When last tried.
    self._left: set[str] = set()  # Whom it has cut for good.
    self._tell(events_lib.Began())

  def _tell(self, event: Any, life: str | None = None) -> None:
    if not self.is_alive or life not in (None, self._life):
      return
    if self.is_frozen or self.is_behind:
      self._backlog.append((self._tell, (event, self._life)))
      return
    known = self.state.roster.view
    actions = core.on(self.state, event, self._now)
    if self.state.roster.view is not known:
      self.world.on_adopt(self)
    for action in actions:
      if self.is_alive:
        self._carry_out(action)

  @property
  def _now(self) -> float:
    """What its clock shows."""
    return self.world.clock.now + self._ahead_secs

  def _later(self, secs: float, event: Any) -> None:
    self.world.clock.at(secs, self._tell, event, self._life)

  def _tick(self) -> None:
    if self.is_dead:
      return
    if not self.is_frozen:
      is_stopped = self.worker is not None and self.worker.is_stopped
      self._tell(events_lib.Ticked(is_stopped))
    secs = self.state.options.limits.heartbeat_secs
    self.world.clock.at(secs, self._tick)

  def _carry_out(self, action: Any) -> None:
    match action:
      case events_lib.Ask(flow, request):
        self._ask(flow, request)
      case events_lib.DialAgent(member):
        self._dial(member)
      case events_lib.Send(message, to):
        message = network_lib.copy(message)
        for incarnation in self._links if to is None else to:
          if (link := self._links.get(incarnation)) is not None:
            link.send(message)
      case events_lib.Cut(incarnation):
        self._left.add(incarnation)
        self._cut(incarnation)
      case events_lib.TellWorker(message):
        if self.worker is not None:
          self.world.clock.at(_PIPE_SECS, self._tell_worker, message)
      case events_lib.KillWorker():
        self.kill_worker()
      case events_lib.Log(text):
        self.world.log(f"{self._life}: {text}")
      case events_lib.End():
        self._end(action)

  def _end(self, end: events_lib.End) -> None:
    self.world.log(f"{self._life}: ends: {end.error or end.reason!r}")
    self.ended = end
    self.world.on_end(self)
    if self.worker is not None:
      self.worker.end()
      self.worker = None
    self.world.network.close(self.host)
    self.world.shared.judge.call(
        self.host, ("delete", f"nodes/{self.state.incarnation}"), lambda answer: None
    )
    if self.state.must_restart:
      options = dataclasses.replace(self.state.options, is_again=True)
      self.world.clock.at(0.1, self._begin, options)

  # Requests.

  def _ask(self, flow: int, request: Any) -> None:
    match request:
      case events_lib.CallJudge(method, args):
        self._ask_judge(self._life, flow, method, args, ())
      case events_lib.Sleep(secs):
        self.world.clock.at(secs, self._wake_flow, self._life, flow)
      case events_lib.Listen():
        self.world.network.listeners[self.host, self._port] = self._accept
        self._later(0.0, events_lib.Answered(flow, self._port))
      case events_lib.StartWorker(number, stamp):
        self._start_worker(number, stamp)
        self._later(0.0, events_lib.Answered(flow))

  def _wake_flow(self, life: str, flow: int) -> None:
    self._tell(events_lib.Answered(flow, self._now), life)

  def _ask_judge(self, life: str, flow: int, method: str, args: Any, answers: Any) -> None:
    """Makes the next call of the judge, or tells what came of them all."""
    if self.is_frozen or self.is_behind:
      self._backlog.append((self._ask_judge, (life, flow, method, args, answers)))
    elif life == self._life and self.is_alive:
      call, answer, error = judge_lib.carry_on(method, args, answers)
      if call is not None:
        then = lambda found: self._ask_judge(life, flow, method, args, (*answers, found))
        self.world.shared.judge.call(self.host, call, then)
        return
      if method == self._freeze_after[0]:
        self.world.clock.at(self._freeze_after[1], self.thaw)
        self._freeze_after = "", 0.0
        self.freeze()
      self._tell(events_lib.Answered(flow, answer, error), life)

  # The worker.

  def _start_worker(self, number: base.NodeId, stamp: str) -> None:
    self.worker = worker_lib.ScriptedWorker(
        number,
        stamp,
        host=self.host,
        clock=self.world.clock,
        shared=self.world.shared,
        say=lambda message: self._later(_PIPE_SECS, events_lib.WorkerSaid(message)),
        exit=functools.partial(self._worker_exited, self._life),
    )

  def _tell_worker(self, message: Any) -> None:
    if self.worker is not None:
      self.worker.hear(message)

  def _worker_exited(self, life: str, code: int) -> None:
    if life != self._life:
      return
    self.left = self.worker if code >= 0 else None
    self.worker = None
    secs = self.world.random.uniform(_PIPE_SECS, _EXIT_SECS)
    self._later(secs, events_lib.WorkerExited(code))

  # Other agents.

  def _dial(self, member: views.Member) -> None:
    life, other = self._life, member.incarnation

    def accepted() -> None:
      if other in self._refused:
        self._refused.remove(other)
        self._tell(events_lib.PeerAccepted(other), life)

    def opened(connection: network_lib.SimulatedLink) -> None:
      is_over = self.is_dead or life != self._life or self.ended is not None
      if is_over or other in self._left:
        connection.drop()
        return
      self._cut(other)
      self._links[other] = connection
      self._tell(events_lib.PeerReached(other), life)

    def failed(reason: str, is_refused: bool) -> None:
      if is_refused:
        self._refused.add(other)
      self._tell(events_lib.PeerFailed(other, reason, is_refused), life)

    def closed(reason: str) -> None:
      if life == self._life:
        self._links.pop(other, None)
      self._tell(events_lib.PeerClosed(other, reason), life)

    self.world.network.dial(
        self.host,
        (member.host, member.port),
        (self.state.roster.me, self.state.stamp),
        on_accepted=accepted,
        on_open=opened,
        on_failed=failed,
        on_closed=closed,
    )

  def _accept(self, hello: tuple[views.Member, str]) -> Callable[[Any], None] | None:
    member, stamp = hello
    if stamp != self.state.stamp:
      return None  # It is of another run.
    life = self._life
    self._later(0.0, events_lib.PeerCame(member))
    return lambda message: self._tell(events_lib.PeerSaid(member.incarnation, message), life)

  def _cut(self, incarnation: str) -> None:
    link = self._links.pop(incarnation, None)
    if link is not None:
      link.drop()
