"""A host with the real `Agent`, and a worker that follows the protocol and computes hashes.

The worker uses the real `training.cohort`, and follows `training.worker`: it receives facts,
compiles, works in views, votes on each step, and agrees with all others after a loss. Its state
is the hash of the steps it has committed and of the views that voted for them; so a worker is
found that continues from another state than the others, or commits a step with other members.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import hashlib
import math
import pathlib
import random
from typing import Any
from unittest import mock

from bamboo_jax import base, config
from bamboo_jax.cluster import client as client_lib, judge, messages, records, views
from bamboo_jax.cluster.agent import agent as agent_lib
from bamboo_jax.training import cohort as cohort_lib
from tests.explorer import loop as loop_lib, mesh as mesh_lib

STEP_SECS = 0.5
_LIMITS = config.ClusterSection()
_INIT_SECS, _COMPILE_SECS, _LAST_SECS = 0.5, 0.5, 0.5
_SAVE_STEPS, _REPORT_STEPS = 4, 8
_EXPLAIN_SECS = 30.0  # As in `training.worker`.
_BEAT_SECS, _SILENCE_SECS = 0.5, 3.0
_RETRY_SECS, _PATIENCE_SECS = 0.1, 30.0  # As in `base.ask_again`.
_EXIT_SECS = 0.05  # At most, until an agent sees the exit of its worker.
_AGAIN_SECS = 0.1  # Until an agent has restarted.


class _FailedError(Exception):
  """The worker ends with an error."""


@dataclasses.dataclass(frozen=True)
class State:
  """The state of a worker that has committed a step, or received the state of others.

  Attributes:
    life: Stamp of the run, and the view in which training restarted.
    view: The view that the worker works in.
    alive: The workers that live.
  """

  worker: "Worker"
  life: tuple[str, int]
  view: views.View
  steps: int
  state: str
  is_commit: bool
  alive: frozenset["Worker"]


@dataclasses.dataclass(frozen=True)
class Ended:
  """The end of an agent: a reason, "" if training is done, or an error.

  Attributes:
    is_lost: Whether the state of its worker is lost, though no signal has ended that.
  """

  reason: str
  error: Exception | None
  worker: "Worker"
  is_lost: bool


def make_options(name: str, **changes: Any) -> agent_lib.AgentOptions:
  """Returns the options of a simulated agent."""
  told: dict[str, Any] = dict(
      name=name,
      zone="a",
      workdir="workdir",
      host="h",
      num_nodes=4,
      place=lambda zones: {ticket: ticket for ticket in zones},
      config={"seed": 0},
      command=(),
      log="",
      limits=_LIMITS,
  )
  return agent_lib.AgentOptions(**told | changes)


class Machine:
  """A host with an agent and its worker, in a `history.ClusterHistory`.

  Attributes:
    agent: The present or last agent; `worker` and `process` are its own.
    ended: How it ended, None while it lives.
    is_dead: Whether the processes or the machine are gone.
    is_hung: Whether all processes are stopped for good.
    freeze_secs: How long all processes stop right after the next record that it makes.
  """

  def __init__(self, cluster: Any, options: agent_lib.AgentOptions) -> None:
    self.cluster, self.host = cluster, options.host
    # Clocks of machines are unrelated.
    self._ahead_secs = random.Random(f"clock {options.host}").uniform(0.0, 1e5)
    self.is_dead = self.is_hung = False
    self.records = cluster.place.open(self.host)
    self.freeze_secs = 0.0
    self._begin(options)

  @property
  def is_alive(self) -> bool:
    """Whether its agent lives."""
    return not self.is_dead and self.ended is None

  @property
  def is_at_work(self) -> bool:
    """Whether its worker is a member."""
    return self.worker.is_alive and self.agent.roster.is_member

  # Faults.

  def kill(self) -> None:
    """Agent and worker are killed; the host closes their connections."""
    self._die()
    self.cluster.network.close(self.host)

  def vanish(self) -> None:
    """The machine is gone, and its connections stay open."""
    self._die()
    self.cluster.network.silent.add(self.host)

  def kill_worker(self, code: int = -9) -> None:
    """The worker ends with an exit status, or by a signal."""
    self.worker.end(code)

  def stop_worker(self) -> None:
    """SIGSTOP of the worker."""
    self.worker.process.is_stopped = True

  def hang(self) -> None:
    """Stops all processes for good."""
    self.is_hung = self.process.is_stopped = True
    self.stop_worker()

  @contextlib.contextmanager
  def frozen(self, *, is_all: bool = True) -> Iterator[None]:
    """Stops all processes, or only the agent, for a while."""
    self.process.is_stopped = True
    if is_all:
      self.stop_worker()
    yield
    if not self.is_hung:
      self.process.cont()
      self.worker.process.cont()

  def notice(self) -> None:
    """Tells the agent that the node will be preempted."""
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
    self.worker = Worker(self)
    incarnation = f"{options.name}#{life}"
    self.agent = agent_lib.Agent(
        options,
        incarnation=incarnation,
        judge=self._ask,
        mesh=mesh_lib.Mesh(cluster.network, self.process, self.host, 1000 + life, incarnation),
        worker=self.worker,
        log=self._log,
    )
    self.process.start(self._live, self.agent, self.worker)

  async def _live(self, agent: agent_lib.Agent, worker: "Worker") -> None:
    reason, error = "", None
    try:
      reason = await agent.run()
    except (OSError, ValueError, base.RunFailedError) as failure:
      error = failure
    is_lost = (agent.must_restart or error is not None) and (worker.code or 0) >= 0
    self.ended = Ended(reason, error, worker, is_lost)
    self.cluster.note(self.host, self.ended)
    self.cluster.note(self.host, f"{agent.incarnation}: ends: {error or repr(reason)}")
    if agent.must_restart:
      options = dataclasses.replace(agent.options, is_again=True)
      self.cluster.clock.at(_AGAIN_SECS, self._begin, options)

  def _log(self, level: int, text: str, *args: Any) -> None:
    self.cluster.note(self.host, f"{self.agent.incarnation}: {text % args}")
    if text.startswith("View "):
      self.cluster.note(self.host, tuple(self.agent.roster.recent_views()))

  async def _ask(self, function: Any, *args: Any) -> Any:
    """Calls a function with the records; may stop the machine right after it."""
    answer = await loop_lib.call(function, self.records, *args)
    if self.freeze_secs and function.__name__.startswith("make"):
      secs, self.freeze_secs = self.freeze_secs, 0.0
      self.cluster.process.start(self.cluster.hold, self.frozen(), secs)
      await asyncio.sleep(0)
    return answer


class Worker:
  """The worker of an agent, in a process of its own; as `worker_process.WorkerProcess`.

  Attributes:
    stamp: Of the run, as told by its agent.
    epoch: The view in which training restarted.
    steps: Steps that it has committed; -1 before it has any state.
    is_alive: Whether it has been started and has not ended.
    code: Its exit status, or the signal that has ended it, as its agent sees it.
  """

  def __init__(self, machine: Machine) -> None:
    """Starts no process yet."""
    self.host, self._agent, self._cluster = machine.host, machine.process, machine.cluster
    self._records = machine.records
    self._clock = self._cluster.clock
    self.process = loop_lib.Process(self._clock)
    self.number, self.stamp = base.NodeId(-1), ""
    self.steps, self.epoch, self.state = -1, 0, ""
    self.is_alive = False
    self.code: int | None = None
    self._voted_in = 0  # View in which it has voted last.
    self._exit = self._agent.create_future()
    self._saves: set[asyncio.Task[None]] = set()

  # Called by its agent, as `worker_process.WorkerProcess`.

  async def start(
      self, command: Sequence[str], *, log: str, on_message: Callable[[Any], None]
  ) -> None:
    number, self.stamp, _ = command
    self.number, self.is_alive = base.NodeId(int(number)), True
    transport: Any = mock.Mock(address="", open_waits=tuple)  # Of no values.
    self._cohort = cohort_lib.ClusterCohort(self.number, transport, self._records, pathlib.Path())
    self.client = self._cohort.client = client_lib.Client(
        self.number,
        send=lambda message: self._agent.tell(on_message, message),
        on_lost=self._cohort._lose,
        begun=self._cohort.begun,
        now=self.process.time,
        heartbeat_secs=_BEAT_SECS,
        silence_secs=_SILENCE_SECS,
    )
    self._changed = self.client._changed = loop_lib.Condition(self.process)
    self.process.start(self._or_fail, self._live)
    self.process.start(self._beat)

  def send(self, message: Any) -> None:
    self.process.tell(lambda: self.client.hear(message))

  async def wait(self) -> int:
    code: int = await self._exit
    return code

  def is_stopped(self) -> bool:
    return self.process.is_stopped

  def is_busy(self) -> bool:
    return False

  def reap_orphans(self) -> None:
    """There are none."""

  def kill(self) -> None:
    self.is_alive = False
    self.process.kill()

  def kill_hanging(self) -> None:
    self.end(-9)

  async def close(self) -> None:
    """Does nothing: it has been killed."""

  def end(self, code: int) -> None:
    """Ends it; its agent sees that a little later."""
    if self.is_alive:
      self.kill()
      self.code = code
      secs = self._clock.random.uniform(0.0, _EXIT_SECS)
      self._clock.at(secs, self._agent.take, loop_lib.settle, self._exit, code)

  # Training.

  async def _beat(self) -> None:
    while True:
      self.client.beat()
      await asyncio.sleep(_BEAT_SECS)

  async def _or_fail(self, work: Callable[..., None], *args: Any) -> None:
    try:
      await loop_lib.call(work, *args)
    except (_FailedError, ValueError, base.FencedError, OSError):
      self.end(1)

  def _live(self) -> None:
    client = self.client
    _sleep(_INIT_SECS)
    if not client.wait_facts():
      self.steps, self.state = self._cluster.find_saved()
    _sleep(_COMPILE_SECS)
    self._cohort.enter()
    do = self._regroup
    while True:
      try:
        do()
        do = self._step
        if self.steps >= self._cluster.num_steps:
          self._finish()
          return
      except (base.ViewChangedError, OSError):
        do = self._recover

  def _recover(self) -> None:
    view = self._cohort.wait_change(_EXPLAIN_SECS)
    if view is None:
      raise _FailedError
    self._cohort.adopt(view.number)
    self._regroup()

  def _regroup(self) -> None:
    client = self.client
    client.collect(messages.BEGUN)
    said = client.gather("status", [self.epoch, self.steps, self.state])
    epoch, steps, state = max(said.values(), key=lambda s: tuple(s[:2]))
    if steps < 0:  # No worker has a state: all begin from the checkpoint.
      steps, state = self._cluster.find_saved()
      epoch = client.adopted.number
    elif self.steps >= 0 and (self.steps < steps - 1 or self.epoch != epoch):
      raise _FailedError  # It is not the state that others have.
    elif self.steps == steps - 1 >= 0:
      self._commit()
      assert self.state == state, "states differ"
    self.steps, self.state, self.epoch = steps, state, epoch
    self._note_state(is_commit=False)
    client.say(layout={"roles": [client.adopted.number]})

  def _step(self) -> None:
    client = self.client
    if self._changed.wait_for(lambda: client.is_interrupted, STEP_SECS):
      raise base.ViewChangedError("a newer view")
    if any(self._cluster.is_gone(m.host) for m in client.adopted.members):
      raise OSError("a transfer has failed")
    client.note_progress()
    seen = max(client.newest.number, client.adopted.number)
    self._voted_in = client.adopted.number
    seen = min(client.gather(f"vote {self.steps}", seen).values())
    self._commit()
    if self.steps % _SAVE_STEPS == 0:
      self._save()
    if seen > client.adopted.number:
      self._cohort.adopt(seen)
      self._regroup()

  def _finish(self) -> None:
    client = self.client
    self._save()
    self._have_saved()
    client.gather(messages.FINISHED, None)
    _sleep(_LAST_SECS)  # Closing its checkpoint.
    key = f"done/{client.adopted.run}"
    done = loop_lib.call(self._ask, math.inf, records.Records.make, key, True)
    asking = self.process.create_task(done)
    while not asking.done():  # A real worker also ends before its agent kills it.
      client.note_progress()
      loop_lib.wait(asyncio.wait([asking], timeout=1.0))
    self._have_saved()
    client.say(is_done=True)
    self.end(0)

  def _commit(self) -> None:
    # All who commit a step voted in the same view, even if one commits it late.
    state = f"{self.state} {self.steps} {self._voted_in}".encode()
    self.state = hashlib.sha256(state).hexdigest()[:16]
    self.steps += 1
    if self.steps % _REPORT_STEPS == 0:
      self.client.say(report={"steps": self.steps})
    self._note_state(is_commit=True)

  def _note_state(self, *, is_commit: bool) -> None:
    alive = frozenset(m.worker for m in self._cluster.machines.values() if m.worker.is_alive)
    own = (self.stamp, self.epoch), self.client.adopted, self.steps, self.state
    self._cluster.note(self.host, State(self, *own, is_commit, alive))

  def _save(self) -> None:
    """Writes a checkpoint beside training, unless a newer life has begun; see `judge.check`."""

    def save(steps: int, state: str, view: views.View) -> None:
      self._ask(_PATIENCE_SECS, judge.check, view)
      self._cluster.saved.setdefault(steps, state)

    own = self.steps, self.state, self.client.adopted
    task = self.process.start(self._or_fail, save, *own)
    self._saves.add(task)
    task.add_done_callback(self._saves.discard)

  def _have_saved(self) -> None:
    if self._saves:
      loop_lib.wait(asyncio.wait(self._saves))

  def _ask(self, patience_secs: float, function: Callable[..., Any], *args: Any) -> None:
    """As `base.ask_again`."""
    end_secs = math.inf
    while True:
      try:
        return function(self._records, *args)
      except OSError:
        now = self.process.time()
        end_secs = min(end_secs, now + patience_secs)
        if now >= end_secs:
          raise
        _sleep(_RETRY_SECS)


def _sleep(secs: float) -> None:
  loop_lib.wait(asyncio.sleep(secs))
