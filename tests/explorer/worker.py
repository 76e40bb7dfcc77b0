"""A worker that keeps to the protocol, and computes hashes.

It talks as real ones do (`cluster.client`), and follows `training.worker`: it is told facts,
compiles, works in views, votes on each step, and agrees with all others after a loss. Its state
is the hash of the steps it has committed and of the views that have voted for them; so a worker
is found that goes on from another state than the others, or commits a step together with other
members.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
import hashlib
import math
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import client as client_lib, judge, messages, records, views
from bamboo_jax.schedule import channel as channel_lib
from tests.explorer import loop as loop_lib

STEP_SECS = 0.25
_INIT_SECS, _COMPILE_SECS, _LAST_SECS = 0.5, 0.5, 0.5
_SAVE_STEPS = 4
_EXPLAIN_SECS = 30.0  # As in `training.worker`.
_BEAT_SECS, _SILENCE_SECS = 0.25, 3.0
_AGAIN_SECS, _PATIENCE_SECS = 0.1, 30.0  # As in `base.ask_again`.
_PIPE_SECS, _EXIT_SECS = 0.0001, 0.05  # At most, until an agent sees an exit.


class _FailedError(Exception):
  """The worker fails by itself."""


class Worker:
  """The worker of an agent, in a process of its own; as `worker_process.WorkerProcess`.

  Attributes:
    stamp: Of the run, as its agent says.
    epoch: The view in which training was begun anew.
    steps: Steps that it has committed; -1 before it has any state.
    is_alive: Whether it has been started, and has not ended.
    code: With which it has ended by itself, or by a signal that its agent sees.
  """

  def __init__(self, machine: Any) -> None:
    """Starts nothing yet; `machine` is a `cluster.Machine`."""
    self.host, self._agent, self._cluster = machine.host, machine.process, machine.cluster
    self._clock = self._cluster.clock
    self.process = loop_lib.Process(self._clock)
    self.number, self.stamp = base.NodeId(-1), ""
    self.steps, self.epoch, self.state = -1, 0, ""
    self.is_alive = False
    self.code: int | None = None
    self._voted_in = 0  # View in which it has voted last.
    self._early: list[Any] = []
    self._exit = self._agent.create_future()
    self._saves: set[asyncio.Task[None]] = set()

  # What its agent does.

  async def start(
      self, command: Sequence[str], *, log: str, on_message: Callable[[Any], None]
  ) -> None:
    number, self.stamp, _ = command
    self.number, self.is_alive = base.NodeId(int(number)), True
    self.client = client_lib.Client(
        self.number,
        send=lambda message: self._clock.at(_PIPE_SECS, self._agent.take, on_message, message),
        on_lost=lambda view: json_lib.to_plain(channel_lib.Begun()),
        begun=channel_lib.Begun,
        now=self.process.time,
        heartbeat_secs=_BEAT_SECS,
        silence_secs=_SILENCE_SECS,
        block=self._wait,
    )
    self._changed = asyncio.Event()
    for message in self._early:
      self.send(message)
    self.process.start(self._or_fail, self._live)
    self.process.start(self._beat)

  def send(self, message: Any) -> None:
    if self.number < 0:  # Before its start.
      self._early.append(message)
    else:
      self._clock.at(_PIPE_SECS, self.process.take, self._hear, message)

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
    """It has been killed."""

  def end(self, code: int) -> None:
    """It ends, which its agent sees a little later."""
    if self.is_alive:
      self.kill()
      self.code = code
      secs = self._cluster.random.uniform(_PIPE_SECS, _EXIT_SECS)
      self._clock.at(secs, self._agent.take, loop_lib.settle, self._exit, code)

  # What it does.

  def _hear(self, message: Any) -> None:
    self.client.hear(message)
    self._changed.set()

  async def _beat(self) -> None:
    while True:
      self.client.beat()
      await asyncio.sleep(_BEAT_SECS)

  async def _wait(self, wait: client_lib.Wait) -> Any:
    """Carries out a wait of the client."""
    held: bool | None = None
    while True:
      try:
        condition, timeout_secs = wait.send(held)
      except StopIteration as end:
        return end.value
      try:
        async with asyncio.timeout(timeout_secs):
          while not condition():
            self._changed.clear()
            await self._changed.wait()
        held = True
      except TimeoutError:
        held = False

  async def _or_fail(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
    try:
      await work(*args)
    except (_FailedError, ValueError, base.FencedError, OSError):
      self.end(1)

  async def _live(self) -> None:
    client = self.client
    await asyncio.sleep(_INIT_SECS)
    if not await client.wait_facts():
      self.steps, self.state = self._cluster.find_saved()
    await asyncio.sleep(_COMPILE_SECS)
    client.say(is_ready=True)
    client.adopt(await client.wait_first())
    do = self._regroup
    while True:
      try:
        await do()
        do = self._step
        if self.steps >= self._cluster.num_steps:
          await self._finish()
          return
      except (base.ViewChangedError, OSError):
        do = self._recover

  async def _recover(self) -> None:
    view = await self.client.wait_interrupt(_EXPLAIN_SECS)
    if view is None:
      raise _FailedError
    self.client.adopt(view)
    await self._regroup()

  async def _regroup(self) -> None:
    client = self.client
    await client.collect("begun")
    said = await self._gather("status", [self.epoch, self.steps, self.state])
    epoch, steps, state = max(said.values(), key=lambda s: tuple(s[:2]))
    if steps < 0:  # Nobody has anything: all begin from the checkpoint.
      steps, state = self._cluster.find_saved()
      epoch = client.adopted.number
    elif self.steps >= 0 and (self.steps < steps - 1 or self.epoch != epoch):
      raise _FailedError  # Impossible facts.
    elif self.steps == steps - 1 >= 0:
      self._commit()
      assert self.state == state, "states differ"
    self.steps, self.state, self.epoch = steps, state, epoch
    self._cluster.note_state(self, is_commit=False)
    client.say(layout={"roles": [client.adopted.number]})

  async def _step(self) -> None:
    client = self.client
    for _ in range(4):
      await asyncio.sleep(STEP_SECS / 4)
      if client.is_interrupted:
        raise base.ViewChangedError("a newer view")
      if any(self._cluster.is_gone(m.host) for m in client.adopted.members):
        raise OSError("a transfer has failed")
      client.note_progress()
    seen = max(client.newest.number, client.adopted.number)
    self._voted_in = client.adopted.number
    seen = min((await self._gather(f"vote {self.steps}", seen)).values())
    self._commit()
    if self.steps % _SAVE_STEPS == 0:
      self._save()
    if seen > client.adopted.number:  # As `ClusterCohort.adopt`.
      view = await client.find_view(seen)
      stopped_for = await client.wait_interrupt(0.0)
      client.adopt(view)
      if stopped_for is None or stopped_for.number != view.number:
        client.post(view.number, "begun", json_lib.to_plain(channel_lib.Begun()))
      await self._regroup()

  async def _finish(self) -> None:
    self._save()
    await self._have_saved()
    await self._gather(messages.FINISHED, None)
    await asyncio.sleep(_LAST_SECS)  # Until its checkpoint is closed.
    key = f"done/{self.client.adopted.run}"
    await self._ask(records.Records.make, key, True, patience_secs=math.inf)
    await self._have_saved()
    self.client.say(is_done=True)
    self.end(0)

  async def _gather(self, key: str, value: Any) -> dict[base.NodeId, Any]:
    self.client.post(self.client.adopted.number, key, value)
    said: dict[base.NodeId, Any] = await self.client.collect(key)
    return said

  def _commit(self) -> None:
    # Those who commit a step have voted in one view, also who commits it late.
    state = f"{self.state} {self.steps} {self._voted_in}".encode()
    self.state = hashlib.sha256(state).hexdigest()[:16]
    self.steps += 1
    self.client.say(report={"steps": self.steps})
    self._cluster.note_state(self, is_commit=True)

  def _save(self) -> None:
    """Writes a checkpoint beside training, unless its life is over; see `judge.check_now`."""

    async def save(steps: int, state: str, view: views.View) -> None:
      await self._ask(judge.check, view, patience_secs=_PATIENCE_SECS)
      self._cluster.saved.setdefault(steps, state)

    own = self.steps, self.state, self.client.adopted
    task = self.process.start(self._or_fail, save, *own)
    self._saves.add(task)
    task.add_done_callback(self._saves.discard)

  async def _have_saved(self) -> None:
    if self._saves:
      await asyncio.wait(self._saves)

  async def _ask(self, function: Callable[..., Any], *args: Any, patience_secs: float) -> None:
    """As `base.ask_again`."""
    end_secs = math.inf
    while True:
      try:
        return await self._cluster.place.call(self.host, function, *args)
      except OSError:
        now = self.process.time()
        end_secs = min(end_secs, now + patience_secs)
        if now >= end_secs:
          raise
        await asyncio.sleep(_AGAIN_SECS)
