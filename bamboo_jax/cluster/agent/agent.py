"""The agent of a node: starts its worker, watches the others, agrees on views.

It imports nothing that computes, so it starts at once and answers at once. All
that it decides is in `roster`, `views`, `board` and `watch`; here is what
happens when: connections, timers, the store.
"""

import asyncio
import contextlib
import time
from typing import Any
import uuid

from absl import logging

from bamboo_jax.cluster import children
from bamboo_jax.cluster import frames
from bamboo_jax.cluster import peers as peers_lib
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import announcements
from bamboo_jax.cluster.agent import arrival
from bamboo_jax.cluster.agent import board as board_lib
from bamboo_jax.cluster.agent import ending as ending_lib
from bamboo_jax.cluster.agent import options as agent_options
from bamboo_jax.cluster.agent import proposals as proposals_lib
from bamboo_jax.cluster.agent import reporter as reporter_lib
from bamboo_jax.cluster.agent import roster as roster_lib
from bamboo_jax.cluster.agent import watch as watch_lib
from bamboo_jax.cluster.agent import worker_process
from bamboo_jax.cluster.sessions import services as services_lib
from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.cluster.store import registry as registry_lib

_LOOK_SECS = 1.0  # Between two looks at the store.
_FIRST_LOOK_SECS = 0.1  # The same before the first view.
_ALONE_SECS = 2.0  # That the others have to say that they go on.


class Agent:
  """One agent; `run` is its life."""

  def __init__(
      self, etcd: etcd_lib.Etcd, options: agent_options.Options
  ) -> None:
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
    self._roster = roster_lib.Roster(least=options.num_nodes)
    self._board = board_lib.Board(
        find_members=lambda v: {m.number for m in self._roster.members_of(v)},
        deliver=self._deliver,
    )
    self._watch = watch_lib.Watch(options.limits, time.monotonic())
    self._ending = ending_lib.Ending()
    self._facts: Any = None
    self._reporter = reporter_lib.Reporter(self._registry)
    self._me: views.Member | None = None
    self._proposals = proposals_lib.Proposals(
        self._registry,
        wanted=self._wanted,
        is_minority=lambda v: views.is_minority(self._roster.view, v),
        on_written=self._announce,
        known=lambda: self._roster.view.number,
        on_read=self._adopt,
        start=self._start,
    )
    self._services = services_lib.Services(
        etcd,
        options.run,
        fixed=options.era,
        tell=self._worker.send,
        on_change=self._proposals.decide,
    )
    self._announcements = announcements.Announcements(
        self._roster, self._peers, decide=self._proposals.decide
    )
    self._tasks: set[asyncio.Task] = set()

  @property
  def successor(self) -> agent_options.Options | None:
    """What an agent is told that comes in place of this one, if any does."""
    return self._ending.successor(self._options, self._roster.view)

  async def run(self) -> str:
    """Lives until the worker has ended; returns why that was, "" if done.

    Raises:
      OSError: The store cannot be reached, or a port cannot be had.
      ValueError: The run is another one, or has no place left.
    """
    options = self._options
    await asyncio.to_thread(self._registry.check_facts, options.facts)
    begins_anew = await arrival.begins_anew(self._registry, options)
    number = await arrival.take_number(
        self._registry, self._services, options, is_first=not begins_anew
    )
    port = await self._peers.listen(options.host)
    self._me = self._peers.me = views.Member(
        number, options.name, options.zone, uuid.uuid4().hex, options.host, port
    )
    self._roster.me = self._me
    self._roster.meet(self._me)
    await asyncio.to_thread(self._registry.register, self._me)
    await self._services.wait_slot(number)
    command = [*options.command, options.name, str(number)]
    await self._worker.start(command, log=options.log)
    self._services.tell_newest()
    if begins_anew:
      self._worker.send({"kind": "facts", "facts": {"restart": True}})
    elif await asyncio.to_thread(self._registry.read_view) is None:
      self._worker.send({"kind": "facts", "facts": {}})  # It is the beginning.
    self._watch.begin(time.monotonic())
    for work in (
        self._look(),
        self._beat(),
        self._keep_lease(),
        self._wait_notice(),
        self._reporter.run(),
    ):
      self._start(work)
    try:
      return await self._ending.wait()
    finally:
      self._worker.kill()
      for task in self._tasks:
        task.cancel()
      if self._me.incarnation in self._roster.done:
        self._peers.send_all({"kind": "bye"})
      await self._peers.close()
      self._services.close()
      await self._reporter.write()
      with contextlib.suppress(OSError):
        await asyncio.to_thread(self._registry.leave)
      await self._worker.close()

  def _start(self, work: Any) -> None:
    task = asyncio.get_running_loop().create_task(work)
    self._tasks.add(task)
    task.add_done_callback(self._task_ended)

  def _task_ended(self, task: asyncio.Task) -> None:
    self._tasks.discard(task)
    if not task.cancelled() and task.exception():
      self._ending.fail(task.exception())

  # What others say.

  def _welcome(self, member: views.Member) -> None:
    """Somebody has opened a connection to this agent."""
    self._roster.meet(member)
    self._watch.add(member.incarnation, time.monotonic())
    self._peers.dial(member)

  def _greet(self, incarnation: str) -> None:
    """Tells somebody new what it has missed."""
    era = self._services.used
    if self._roster.is_ready(self._me.incarnation):
      self._peers.send(incarnation, {"kind": "ready", "era": era})
    self._announcements.greet(incarnation)
    self._tell_facts(incarnation)

  def _hear(self, incarnation: str, message: frames.Message) -> None:
    if incarnation in self._roster.lost:
      return  # Left out, and woken: nothing that it says counts any more.
    self._watch.note(incarnation, time.monotonic())
    match message["kind"]:
      case "post":
        number = self._roster.number_of(incarnation)
        self._board.post(
            message["view"], message["key"], number, message["value"]
        )
      case "beat":
        self._watch.note_stall(incarnation, message.get("stall"))
      case "ready":
        self._roster.note_ready(incarnation, era=message["era"])
        self._proposals.decide()
      case "view":
        view = views.View.from_json(message["view"])
        if view.number - 1 in (0, self._roster.view.number):
          self._adopt(view)
        else:
          self._start(self._proposals.read_surely())  # Some before it, too.
      case "notice":
        self._announcements.hear(incarnation, message["reason"])
      case "exit":
        self._lose(incarnation, message["reason"], message["is_bereft"])
      case "facts":
        self._worker.send(message)
      case "lost":
        lost = message["incarnation"]
        if lost != self._me.incarnation:
          self._lose(lost, message["reason"], message["is_bereft"])
      case "bye":
        self._roster.done.add(incarnation)

  def _lose(
      self, incarnation: str, reason: str, is_bereft: bool = False
  ) -> None:
    """Somebody is gone: its agent, its worker, or both."""
    if is_bereft:
      self._ending.note_bereft(incarnation)
    if self._ending.is_near or not self._roster.lose(incarnation, reason):
      return
    logging.info("%.3f Lost %s: %s", time.time(), incarnation, reason)
    self._peers.send_all(  # All must believe the same, true or not.
        {
            "kind": "lost",
            "incarnation": incarnation,
            "reason": reason,
            "is_bereft": is_bereft,
        }
    )
    self._peers.forget(incarnation)
    self._watch.drop(incarnation)
    if self._roster.view.members and self._roster.leader() is None:
      self._start(self._make_sure_it_is_over())
    self._proposals.decide()

  async def _make_sure_it_is_over(self) -> None:
    """Ends, as nobody is left, unless the others have only left this one."""
    await self._proposals.wait_newer(secs=_ALONE_SECS)
    if self._roster.leader() is None:
      reason = f"nobody is left of run {self._options.run!r} to join"
      self._ending.end_run(self._me.incarnation, reason)

  # What the worker says.

  def _hear_worker(self, message: frames.Message) -> None:
    self._watch.note_worker(time.monotonic())
    match message["kind"]:
      case "post":
        for member in self._roster.members_of(message["view"]):
          self._peers.send(member.incarnation, message)
        self._board.post(
            message["view"], message["key"], self._me.number, message["value"]
        )
      case "adopt":
        self._board.move_to(message["view"])
        self._roster.drop_older(message["view"])
      case "beat":
        self._watch.note_progress(message, time.monotonic())
      case "ready":
        self._watch.note_ready(time.monotonic())
        self._roster.note_ready(self._me.incarnation, era=self._services.used)
        self._peers.send_all({"kind": "ready", "era": self._services.used})
        self._proposals.decide()
      case "facts":
        self._facts = message["facts"]
        self._reporter.note({"layout": self._facts})
        for incarnation in self._roster.known:
          self._tell_facts(incarnation)
      case "era":
        self._start(self._services.use(self._options.name, message["number"]))
      case "report":
        self._reporter.note(message["facts"])
      case "doubt":
        self._start(self._make_sure())
      case "done":
        self._roster.done.add(self._me.incarnation)
      case "leave":
        reason = "handed over after a notice"
        self._peers.send_all(
            {"kind": "exit", "reason": reason, "is_bereft": False}
        )
        self._ending.finish("")

  def _deliver(self, view: int, key: str, values: dict[int, Any]) -> None:
    self._worker.send(
        {"kind": "gathered", "view": view, "key": key, "values": values}
    )

  def _worker_ended(self, code: int) -> None:
    reason = ""
    if self._me.incarnation not in self._roster.done:
      ended = f"its worker ended with {children.describe_exit(code)}"
      reason = self._ending.fault or ended
    # One that has failed by itself would do so again.
    is_bereft = code < 0 and self._roster.is_member and not self._ending.fault
    if not reason or not is_bereft:
      self._ending.finish(reason)
    if reason:
      self._ending.cause = reason
      self._peers.send_all(
          {"kind": "exit", "reason": reason, "is_bereft": is_bereft}
      )
      self._lose(self._me.incarnation, reason)

  # Notices.

  def give_notice(self, reason: str) -> bool:
    """Announces that this node will be preempted, see `announcements`."""
    return self._announcements.give(reason)

  async def _wait_notice(self) -> None:
    if reason := await self._announcements.wait(self._options.notices):
      self._ending.finish(reason)

  # Views.

  def _wanted(self) -> views.View | None:
    """Returns the view to propose, None if there is nothing to do here."""
    if self._ending.is_near:
      return None  # Others turn away from it, which says nothing about them.
    era = self._services.needed(self._roster.view.era)
    return self._roster.wanted(era=era)

  async def _make_sure(self) -> None:
    """Tells the worker that it is still a member, if the store says so."""
    await self._proposals.read_surely()
    if not self._ending.is_near:
      self._worker.send({"kind": "member"})

  def _announce(self, view: views.View) -> None:
    self._peers.send_all({"kind": "view", "view": view.to_json()})
    self._adopt(view)

  def _adopt(self, view: views.View) -> None:
    was_in, former = self._roster.is_member, self._roster.view
    if not self._roster.adopt(view):
      return
    logging.info("%.3f View %d: %s", time.time(), view.number, view.reason)
    if was_in and not self._roster.is_member:
      self._ending.finish(
          self._ending.cause or f"the others go on without it: {view.reason}"
      )
      return
    for member in former.members:
      if not view.find(member.incarnation):
        self._lose(member.incarnation, view.reason)
    for member in view.members:
      self._peers.dial(member)
    self._start(self._services.find(view.era))
    self._worker.send({"kind": "view", "view": view.to_json()})
    self._board.note_view(view.number)
    self._proposals.decide()

  def _tell_facts(self, incarnation: str) -> None:
    """Tells somebody who wants to join what members know."""
    if self._facts and self._roster.is_member:
      if not self._roster.view.find(incarnation):
        self._peers.send(incarnation, {"kind": "facts", "facts": self._facts})

  # Timers.

  async def _look(self) -> None:
    """Finds other agents in the store, and views that it was not told of."""
    while True:
      try:
        for member in await asyncio.to_thread(self._registry.members):
          self._peers.dial(member)
        await self._proposals.read()
        await self._services.look()
      except OSError as error:
        logging.warning("%s", error)
      await asyncio.sleep(
          _LOOK_SECS if self._roster.view.members else _FIRST_LOOK_SECS
      )

  async def _beat(self) -> None:
    """Says that it is alive, and notes who has not said so for too long."""
    last, every_secs = time.monotonic(), self._options.limits.heartbeat_secs
    while True:
      self._peers.send_all({"kind": "beat", "stall": self._watch.stall(last)})
      await asyncio.sleep(every_secs)
      now = time.monotonic()
      if now - last > 5 * every_secs:  # This process had no time itself.
        self._watch.excuse(now)
      last = now
      self._check_silences(now)

  def _check_silences(self, now: float) -> None:
    members = self._roster.view.members
    if fault := self._watch.find_fault(
        now, members, me=self._me, is_stopped=self._worker.is_stopped
    ):
      self._ending.fault = fault
      self._worker.kill()  # Fenced: it will do no harm when it wakes.
    for incarnation, reason in self._watch.find_silent(now).items():
      self._lose(incarnation, reason)

  async def _keep_lease(self) -> None:
    while True:
      await asyncio.sleep(registry_lib.LEASE_SECS / 3)
      with contextlib.suppress(OSError):  # Read by nobody to find a death.
        await asyncio.to_thread(self._registry.renew, self._me)
