"""The agent of a node: starts its worker, watches the others, agrees on views.

It imports nothing that computes, so it starts at once and answers at once. All
that it decides is in `views`, `board` and `detection`; here is what happens
when: connections, timers, the store.
"""

import asyncio
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import time
from typing import Any
import uuid

from absl import logging

from bamboo_jax.cluster import board as board_lib
from bamboo_jax.cluster import children
from bamboo_jax.cluster import detection
from bamboo_jax.cluster import etcd as etcd_lib
from bamboo_jax.cluster import frames
from bamboo_jax.cluster import peers as peers_lib
from bamboo_jax.cluster import registry as registry_lib
from bamboo_jax.cluster import views
from bamboo_jax.cluster import worker_process

_BEAT_SECS = 0.1
_LOOK_SECS = 1.0  # Between two looks at the store.


@dataclasses.dataclass(frozen=True)
class Options:
  """What an agent is told.

  Attributes:
    run: Name of the run in the store.
    name: Name of the node.
    zone: Zone of the node.
    host: Where to listen, and how others reach it.
    num_nodes: Number of nodes that the first view waits for.
    max_nodes: Number of nodes, dead ones included, that a run can have.
    place: Returns the numbers of the nodes to begin with, in place of those in
      the order of their coming, from the zone of each.
    facts: What all nodes must agree on, by name; plain JSON values.
    command: Starts the worker; name and number of the node and the number of
      its socket are added.
    log: File for the output of the worker.
    secret: Shared by all processes of the cluster.
  """

  run: str
  name: str
  zone: str
  host: str
  num_nodes: int
  max_nodes: int
  place: Callable[[dict[int, str]], dict[int, int]]
  facts: dict[str, Any]
  command: Sequence[str]
  log: str
  secret: bytes = b""


class Agent:
  """One agent; `run` is its life."""

  def __init__(self, etcd: etcd_lib.Etcd, options: Options) -> None:
    self._options = options
    self._registry = registry_lib.Registry(etcd, options.run)
    self._peers = peers_lib.Peers(
        run=options.run,
        secret=options.secret,
        on_hello=self._welcome,
        on_connected=self._greet,
        on_message=self._hear,
        on_lost=self._lose,
    )
    self._worker = worker_process.WorkerProcess(
        on_message=self._hear_worker, on_exit=self._worker_ended
    )
    self._board = board_lib.Board()
    self._views: dict[int, views.View] = {0: views.EMPTY}
    self._view = views.EMPTY
    self._known: dict[str, views.Member] = {}
    self._ready: set[str] = set()
    self._lost: dict[str, str] = {}
    self._done: set[str] = set()
    self._silences: dict[str, detection.Silence] = {}
    self._worker_silence: detection.Silence | None = None
    self._facts: Any = None
    self._is_deciding = False
    self._tasks: set[asyncio.Task] = set()
    self._end: asyncio.Future[str] | None = None

  async def run(self) -> str:
    """Lives until the worker has ended; returns why that was, "" if done.

    Raises:
      OSError: The store cannot be reached, or a port cannot be had.
      ValueError: The run is another one, or has no place left.
    """
    options = self._options
    self._end = asyncio.get_running_loop().create_future()
    await asyncio.to_thread(self._registry.check_facts, options.facts)
    number = await self._take_number()
    port = await self._peers.listen(options.host)
    self._me = self._peers.me = views.Member(
        number, options.name, options.zone, uuid.uuid4().hex, options.host, port
    )
    self._known[self._me.incarnation] = self._me
    await asyncio.to_thread(self._registry.register, self._me)
    command = [*options.command, options.name, str(number)]
    await self._worker.start(command, log=options.log)
    if await asyncio.to_thread(self._registry.read_view) is None:
      self._worker.send({"kind": "facts", "facts": {}})  # It is the beginning.
    self._worker_silence = detection.Silence(
        time.monotonic(), least_secs=30.0, most_secs=60.0
    )
    for work in (self._look(), self._beat(), self._keep_lease()):
      self._start(work)
    try:
      return await self._end
    finally:
      self._worker.kill()
      for task in self._tasks:
        task.cancel()
      if self._me.incarnation in self._done:
        self._peers.send_all({"kind": "bye"})
      await self._peers.close()
      with contextlib.suppress(OSError):
        await asyncio.to_thread(self._registry.leave)

  async def _take_number(self) -> int:
    """Returns the number of this node, once it is known who begins."""
    options = self._options
    ticket = await asyncio.to_thread(
        self._registry.take_ticket, options.max_nodes, zone=options.zone
    )
    while ticket < options.num_nodes:
      zones = await asyncio.to_thread(self._registry.zones)
      if zones.keys() >= set(range(options.num_nodes)):
        first = {t: zones[t] for t in range(options.num_nodes)}
        return options.place(first)[ticket]
      await asyncio.sleep(_BEAT_SECS)
    return ticket

  def _start(self, work: Any) -> None:
    task = asyncio.get_running_loop().create_task(work)
    self._tasks.add(task)
    task.add_done_callback(self._task_ended)

  def _finish(self, reason: str) -> None:
    """Ends the life of the agent; the first reason counts."""
    if not self._end.done():
      self._end.set_result(reason)

  def _task_ended(self, task: asyncio.Task) -> None:
    self._tasks.discard(task)
    if not task.cancelled() and task.exception() and not self._end.done():
      self._end.set_exception(task.exception())

  # What others say.

  def _welcome(self, member: views.Member) -> None:
    """Somebody has opened a connection to this agent."""
    self._known[member.incarnation] = member
    self._silences[member.incarnation] = detection.Silence(time.monotonic())
    self._peers.dial(member)

  def _greet(self, incarnation: str) -> None:
    """Tells somebody new what it has missed."""
    if self._me.incarnation in self._ready:
      self._peers.send(incarnation, {"kind": "ready"})
    self._tell_facts(incarnation)

  def _hear(self, incarnation: str, message: frames.Message) -> None:
    silence = self._silences.get(incarnation)
    if silence is not None:
      silence.beat(time.monotonic())
    match message["kind"]:
      case "post":
        self._post(message, self._known[incarnation].number)
      case "ready":
        self._ready.add(incarnation)
        self._decide()
      case "view":
        self._adopt(views.View.from_json(message["view"]))
      case "exit":
        self._lose(incarnation, message["reason"])
      case "facts":
        self._worker.send(message)
      case "bye":
        self._done.add(incarnation)

  def _lose(self, incarnation: str, reason: str) -> None:
    """Somebody is gone: its agent, its worker, or both."""
    if incarnation in self._done or incarnation in self._lost:
      return
    self._lost[incarnation] = reason
    self._peers.forget(incarnation)
    if self._view.members and self._view.leader(self._lost) is None:
      self._finish("there is nobody left to join")
    self._decide()

  # What the worker says.

  def _hear_worker(self, message: frames.Message) -> None:
    self._worker_silence.beat(time.monotonic())
    match message["kind"]:
      case "post":
        view = self._views.get(message["view"])
        post = {k: message[k] for k in ("kind", "view", "key", "value")}
        for member in view.members if view else ():
          self._peers.send(member.incarnation, post)
        self._post(message, self._me.number)
      case "adopt":
        self._board.move_to(message["view"])
      case "ready":
        self._worker_silence = detection.Silence(time.monotonic())
        self._ready.add(self._me.incarnation)
        self._peers.send_all({"kind": "ready"})
        self._decide()
      case "facts":
        self._facts = message["facts"]
        for incarnation in self._known:
          self._tell_facts(incarnation)
      case "done":
        self._done.add(self._me.incarnation)

  def _worker_ended(self, code: int) -> None:
    reason = ""
    if self._me.incarnation not in self._done:
      reason = f"its worker ended with {children.describe_exit(code)}"
    self._finish(reason)
    if reason:
      self._peers.send_all({"kind": "exit", "reason": reason})

  # The board.

  def _post(self, message: frames.Message, number: int) -> None:
    view, key = message["view"], message["key"]
    self._board.post(view, key, number, message["value"])
    self._deliver(view, key)

  def _deliver(self, number: int, key: str) -> None:
    view = self._views.get(number)
    values = view and self._board.take(number, key, view.numbers)
    if values:
      self._worker.send(
          {"kind": "gathered", "view": number, "key": key, "values": values}
      )

  # Views.

  def _decide(self) -> None:
    """Makes the next view if that is this agent's turn."""
    if not self._is_deciding:
      self._is_deciding = True
      self._start(self._propose())

  async def _propose(self) -> None:
    try:
      while (view := self._wanted()) is not None:
        if await asyncio.to_thread(self._registry.write_view, view):
          self._peers.send_all({"kind": "view", "view": view.to_json()})
          self._adopt(view)
        else:
          await self._read_view()
    except OSError as error:
      logging.warning("%s Trying again.", error)
      await asyncio.sleep(0.1)
      asyncio.get_running_loop().call_soon(self._decide)
    finally:
      self._is_deciding = False

  def _wanted(self) -> views.View | None:
    """Returns the view to propose, None if there is nothing to do here."""
    if self._end.done():
      return None  # Others turn away from it, which says nothing about them.
    if self._view.members:
      leader = self._view.leader(self._lost)
    else:
      ready = [m for i, m in self._known.items() if i in self._ready]
      leader = min(ready, default=None)
    if leader is None or leader.incarnation != self._me.incarnation:
      return None
    view = views.next_view(
        self._view,
        lost=self._lost,
        candidates=[m for i, m in self._known.items() if i in self._ready],
        least=self._options.num_nodes,
    )
    return None if view is self._view else view

  async def _read_view(self) -> None:
    view = await asyncio.to_thread(self._registry.read_view)
    if view is not None:
      self._adopt(view)

  def _adopt(self, view: views.View) -> None:
    if view.number <= self._view.number:
      return
    logging.info("%.3f View %d: %s", time.time(), view.number, view.reason)
    was_in = self._view.find(self._me.incarnation)
    if was_in and not view.find(self._me.incarnation):
      self._finish(f"the others go on without it: {view.reason}")
      return
    self._view = self._views[view.number] = view
    for member in view.members:
      self._known.setdefault(member.incarnation, member)
      self._peers.dial(member)
    self._worker.send({"kind": "view", "view": view.to_json()})
    for key in self._board.keys(view.number):
      self._deliver(view.number, key)
    self._decide()

  def _tell_facts(self, incarnation: str) -> None:
    """Tells somebody who wants to join what members know."""
    if self._facts and self._view.find(self._me.incarnation):
      if not self._view.find(incarnation):
        self._peers.send(incarnation, {"kind": "facts", "facts": self._facts})

  # Timers.

  async def _look(self) -> None:
    """Finds other agents in the store, and views that it was not told of."""
    while True:
      try:
        for member in await asyncio.to_thread(self._registry.members):
          self._peers.dial(member)
        await self._read_view()
      except OSError as error:
        logging.warning("%s", error)
      await asyncio.sleep(_LOOK_SECS if self._view.members else 0.1)

  async def _beat(self) -> None:
    """Says that it is alive, and notes who has not said so for too long."""
    last = time.monotonic()
    while True:
      self._peers.send_all({"kind": "beat"})
      await asyncio.sleep(_BEAT_SECS)
      now = time.monotonic()
      if now - last > 5 * _BEAT_SECS:  # This process had no time itself.
        for silence in [*self._silences.values(), self._worker_silence]:
          silence.excuse(now)
      last = now
      self._check_silences(now)

  def _check_silences(self, now: float) -> None:
    if self._worker_silence.is_over(now):
      self._worker.kill()  # Fenced: it will do no harm when it wakes.
    for incarnation, silence in list(self._silences.items()):
      if silence.is_over(now):
        self._lose(incarnation, f"silent for {silence.limit_secs:.1f} s")

  async def _keep_lease(self) -> None:
    while True:
      await asyncio.sleep(registry_lib.LEASE_SECS / 3)
      with contextlib.suppress(OSError):  # Read by nobody to find a death.
        await asyncio.to_thread(self._registry.renew, self._me)
