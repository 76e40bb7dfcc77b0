"""The shell of an agent: sockets, timers, records and worker.

Turns sockets, timers and processes into events for `core`, and carries out its
actions. It imports no JAX, so it starts within milliseconds.
"""

import asyncio
from collections.abc import Coroutine
import contextlib
import time
from typing import Any
import uuid

from absl import logging

from bamboo_jax.base import logs, threads
from bamboo_jax.cluster import copies, messages, notices as notices_lib, records as records_lib
from bamboo_jax.cluster.agent import (
    core,
    events as events_lib,
    peers as peers_lib,
    state as state_lib,
    worker_process,
)
from bamboo_jax.net import identity as identity_lib

_LEAVE_SECS = 2.0  # To tell at the end that it has left.


class Agent:
  """The shell of one agent; `run` blocks until the agent has ended."""

  def __init__(
      self,
      records: records_lib.Records,
      options: state_lib.AgentOptions,
      identity: identity_lib.Identity,
      spare: copies.Spare | None = None,
  ) -> None:
    """Makes an agent; `spare`, if given, is a forked process for the worker."""
    self._options, self._records = options, records
    self._identity = identity
    self._state = state_lib.AgentState(options, incarnation=uuid.uuid4().hex)
    self._events: asyncio.Queue[Any] = asyncio.Queue()
    self._peers = peers_lib.Peers(
        identity, self._events, ack_secs=options.limits.least_silence_secs
    )
    self._worker = worker_process.WorkerProcess(self._events, spare)
    self._tasks: set[asyncio.Task[None]] = set()
    self._end: events_lib.End | None = None
    self._started_secs = time.monotonic()

  @property
  def state(self) -> state_lib.AgentState:
    """The state of the core, to be read only."""
    return self._state

  async def run(self) -> str:
    """Runs until the worker has ended; returns the reason, "" if done.

    Raises `OSError` without records or a port, `ValueError` if the workdir is
    of another run, or the run can have no more nodes.
    """
    self._tell(events_lib.Began())
    self._start(self._tick())
    try:
      while self._end is None:
        self._tell(await self._events.get())
    finally:
      await self._close()
    if self._end.error is not None:
      raise self._end.error
    return self._end.reason

  def give_notice(self, reason: str) -> bool:
    """Announces a preemption; returns whether others can take over."""
    is_news = self._state.roster.can_hand_over
    if is_news:
      self._tell(events_lib.Noticed(reason))
    return is_news

  def _tell(self, event: Any) -> None:
    match event:
      case events_lib.WorkerSaid(messages.WorkerBeat(step=step)):
        logs.note_step(step)
    for action in core.on(self._state, event, time.monotonic()):
      self._carry_out(action)

  def _carry_out(self, action: Any) -> None:
    match action:
      case events_lib.Ask(flow, request):
        self._start(self._answer(flow, request))
      case events_lib.Send(message, to):
        self._peers.send(message, to)
      case events_lib.TellWorker(message):
        self._worker.send(message)
      case events_lib.DialAgent(member):
        self._peers.dial(member, me=self._state.roster.own)
      case events_lib.Cut(incarnation):
        self._peers.forget(incarnation)
      case events_lib.KillWorker():
        self._worker.kill_hanging()
      case events_lib.Log(text, is_warning):
        level = logging.WARNING if is_warning else logging.INFO
        logging.log(level, "%s", text)
      case events_lib.End():
        self._end = action

  async def _answer(self, flow: int, request: Any) -> None:
    answer = error = None
    try:
      answer = await self._do(request)
    except Exception as failure:  # The flow knows which it can bear.
      error = failure
    self._events.put_nowait(events_lib.Answered(flow, answer, error))

  async def _do(self, request: Any) -> Any:
    options = self._options
    match request:
      case events_lib.Sleep(secs):
        await asyncio.sleep(secs)
        return time.monotonic()
      case events_lib.Listen():
        state = self._state
        greeting = messages.Greeting(state.incarnation, state.stamp)
        return await self._peers.listen(options.host, greeting=greeting)
      case events_lib.StartWorker(number, stamp):
        since = f"{time.monotonic() - self._started_secs:.3f}"
        command = [*options.command, str(number), stamp, since]
        return await self._worker.start(command, log=options.log)
      case events_lib.WaitNotice():
        assert options.notices is not None, "nothing to poll"
        return await notices_lib.wait_notice(options.notices)
      case events_lib.CallJudge("mark", (key, value)):
        return await self._mark(key, value)
      case events_lib.CallJudge(method, args):
        return await self._call_judge(method, *args)
    raise TypeError(f"Unknown request {request}.")

  async def _mark(self, key: str, value: dict[str, Any]) -> None:
    """Writes a mark with the time of day, for `bamboo status`."""
    await self._call_judge("mark", key, {"at_secs": time.time(), **value})

  async def _call_judge(self, method: str, *args: Any) -> Any:
    # In its own thread: a place that hangs must block no connection. There are
    # few, as each flow waits for at most one call.
    call = getattr(self._records, method)
    return await asyncio.wrap_future(threads.call_beside(call, *args, name="judge"))

  async def _tick(self) -> None:
    while True:
      await asyncio.sleep(self._options.limits.heartbeat_secs)
      self._worker.reap_orphans()
      self._events.put_nowait(events_lib.Ticked(self._worker.is_stopped(), self._worker.is_busy()))

  def _start(self, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)

  async def _close(self) -> None:
    self._worker.kill()
    for task in self._tasks:
      task.cancel()
    await self._peers.close()
    state = self._state
    with contextlib.suppress(OSError, TimeoutError):
      async with asyncio.timeout(_LEAVE_SECS):
        if state.is_status_new:
          await self._mark(f"status/{state.run}", state.status)
        await self._call_judge("drop", f"nodes/{state.incarnation}")
    await self._worker.close()
