"""The agent of a node: membership, as one class whose methods are the steps of its protocols.

It runs on any asyncio loop, also on one of virtual time (`tests/explorer`). What it
needs of the world it is given: `judge` calls a function with the records of the run,
`mesh` connects to other agents, and `worker` is the process that trains. Which nodes
are lost, and who joins, `Roster` decides.
"""

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
import contextlib
import dataclasses
import math
import time
from typing import Any
import uuid

from absl import logging
import msgspec

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import logs, threads, types
from bamboo_jax.cluster import children, copies, judge, messages, notices as notices_lib, views
from bamboo_jax.cluster.agent import (
    board as board_lib,
    mesh as mesh_lib,
    roster as roster_lib,
    worker_process,
)
from bamboo_jax.cluster.records import Records
from bamboo_jax.net import identity as identity_lib

_BEATS = 0.1  # Interval of heartbeats, as a part of `least_silence_secs`.
_MOST_HEARD = 600.0  # Heartbeats that an agent receives in a second.
_SOON_SECS = 0.005
_RETRY_SECS = 0.1
_REDIAL_SECS = 0.2
_SLOW_REDIAL_SECS = 1.0  # To agents that are not members.
_WARN_SECS = 10.0
# How long a joining or restarting node waits for the judge.
_GIVE_UP_SECS, _AGAIN_GIVE_UP_SECS = 15.0, 300.0
_PATIENCE_SECS = 1.0  # An agent that has lost most others waits so long.
_HANDOVER_SECS = 2.0  # After that the next member proposes.
_LOOK_SECS = 2.0  # Interval of reads of the records.
_FIRST_LOOK_SECS = 0.2  # Until this agent is a member.
_NUM_LOOKERS = 3  # Members that look for new agents.
_HANG_SECS = 1.0  # A folder hangs if it has given no answer for so long.
_LASTING_HANG_SECS = 60.0  # Then a worker may count as hanging all the same.
_SETTLE_SECS = 2.0  # Wait of an agent whose worker is gone.
_ALONE_SECS = 1.0  # Live members answer within this time.
_STATUS_SECS = 1.0  # Interval of reports for `bamboo status`.
_LEAVE_SECS = 2.0  # To tell at the end that it has left.


@dataclasses.dataclass(frozen=True)
class AgentOptions:
  """The options of an agent; `notices`, if given, polls for preemptions.

  Attributes:
    workdir: Folder of the run's files, shared by all nodes.
    host: Address to listen on, which others connect to.
    num_nodes: Number of nodes that the first view waits for.
    place: Returns the numbers of the first nodes from their zones; otherwise
      numbers follow the order of joining.
    config: What all nodes must agree on, by name; plain JSON values.
    command: Starts the worker; the number of the node, the stamp of the run,
      the start of the agent on `time.monotonic`, and the number of the socket
      are appended.
    is_again: Whether the node restarts after it was in the run before.
  """

  name: str
  zone: str
  workdir: str
  host: str
  num_nodes: int
  place: Callable[[dict[base.NodeId, str]], dict[base.NodeId, int]]
  config: dict[str, Any]
  command: Sequence[str]
  log: str
  limits: config_lib.ClusterSection
  notices: notices_lib.Poller | None = None
  is_again: bool = False


def make_agent(
    records: Records,
    options: AgentOptions,
    identity: identity_lib.Identity,
    spare: copies.Spare | None = None,
) -> "Agent":
  """Returns an agent with sockets and processes; `spare` is a forked process for the worker."""

  def call(function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
    # In its own thread: a place that hangs must block no connection. There are
    # few, as each step waits for at most one call.
    return asyncio.wrap_future(threads.call_beside(function, records, *args, name="judge"))

  return Agent(
      options,
      incarnation=uuid.uuid4().hex,
      judge=call,
      mesh=mesh_lib.Mesh(identity, ack_secs=options.limits.least_silence_secs),
      worker=worker_process.WorkerProcess(spare),
  )


class Agent:
  """One life of the agent of a node; `run` ends when it leaves the run, and says why.

  Attributes:
    incarnation: Unique in the run.
    roster: What it knows of the others.
    run_id: The view from which the run began.
    stamp: Identity of the run; "" before it is known.
    status: For `bamboo status`.
    has_worker: Whether its worker has been started.
    must_restart: Whether another life should follow, with a new worker.
    has_left: Whether others have taken over, before the run was done.
    is_mistake: Whether a mistake of the user has ended it.
  """

  def __init__(
      self,
      options: AgentOptions,
      *,
      incarnation: str,
      judge: Callable[..., Awaitable[Any]],
      mesh: Any,
      worker: Any,
      log: Callable[..., None] = logging.log,
  ) -> None:
    """Starts nothing yet.

    Args:
      judge: Calls a function with the records and further arguments.
      mesh: A `mesh.Mesh`.
      worker: A `worker_process.WorkerProcess`.
    """
    self.options, self.incarnation = options, incarnation
    self._judge, self._mesh, self._worker_process, self._log = judge, mesh, worker, log
    self._tell = mesh.send  # To some agents, by default to all.
    self.roster = roster_lib.Roster(incarnation, options.limits, options.num_nodes)
    self._watch, self._suspicions = self.roster.watch, self.roster.suspicions
    self._board = board_lib.Board()
    self.run_id, self.stamp = base.ViewId(0), ""
    self.status: dict[str, Any] = {}
    self.has_worker = self.must_restart = self.has_left = self.is_mistake = False
    self._tasks: dict[asyncio.Task[None], str] = {}  # And the names of their steps.
    self._links: dict[str, asyncio.Task[None]] = {}
    self._warned_secs: dict[str, float] = {}
    self._folder_secs = math.inf  # Since when the judge has not answered.
    self._marked_secs = -math.inf  # When this agent last showed its address.
    self._is_status_new = False  # Whether some of it has not been written.
    self._said = messages.Say()
    self._received: messages.Beginning | None = None  # From a member.
    self._layout: messages.Beginning | None = None  # As the worker reported.
    self._shown: messages.NewView | None = None  # To the worker.
    self._doubts = self._settled = 0  # Of the worker, and those that the log has settled.
    # That of the views that it joins, or starts; None before `roster.origin` is known.
    self._epoch: base.ViewId | None = None
    self._heard: set[str] = set()  # Agents that have adopted the newest view.
    self._due = (0, 0.0)  # Number of the view that is due, and since when.
    self._asked = (0, 0.0)  # Number of the question in the log that waits, and since when.
    self._num_answers = 0  # How often a member was alive after all.
    self._fault = ""  # Why it has killed its worker, "" if it has not.
    self._cause = ""  # Why its worker has ended, if others may continue.

  @property
  def is_done(self) -> bool:
    return self.incarnation in self.roster.done

  @property
  def is_ending(self) -> bool:
    """Whether it ignores news about others."""
    return self._end.done()

  @property
  def num_kept(self) -> int:
    """Number of values and tasks kept, beside one for each other agent; must not grow."""
    return len(self._board) + len(self._tasks) - len(self._links)

  async def run(self) -> str:
    """Runs until the worker has ended; returns the reason, "" if done.

    Raises `OSError` without records or a port, `ValueError` if the workdir is
    of another run, or the run can have no more nodes.
    """
    loop = asyncio.get_running_loop()
    self._now = loop.time
    self._end: asyncio.Future[str] = loop.create_future()
    self._begun_secs = self._now()
    self._is_news, self._is_due = asyncio.Event(), asyncio.Event()
    for step in (self._beat, self._react, self._propose, self._end_runs, self._join):
      self._start(step)
    try:
      await asyncio.wait([self._end])
    except asyncio.CancelledError:  # It is told to end at once.
      self._end.cancel()
      await self._close()
      raise
    await self._close()
    reason: str = self._end.result()
    return reason

  async def _close(self) -> None:
    self._worker_process.kill()
    for task in [t for t in self._tasks if t not in self._links.values()]:
      task.cancel()
    await self._mesh.close()
    for task in [*self._tasks]:
      task.cancel()
    with contextlib.suppress(OSError, TimeoutError):
      async with asyncio.timeout(_LEAVE_SECS):
        if self._is_status_new:
          await self._mark(f"status/{self.run_id}", self.status)
        await self._judge(Records.drop, f"nodes/{self.incarnation}")
    await self._worker_process.close()

  def _start(self, step: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> Any:
    task = asyncio.get_running_loop().create_task(step(*args))
    self._tasks[task] = step.__name__
    task.add_done_callback(self._note_ended)
    return task

  def _start_once(self, step: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Starts a step unless it is under way."""
    # A task that has ended stays among them until the loop comes round.
    if not any(n == step.__name__ and not t.done() for t, n in self._tasks.items()):
      self._start(step)

  def _note_ended(self, task: asyncio.Task[None]) -> None:
    del self._tasks[task]
    if not task.cancelled() and (error := task.exception()) is not None:
      self._finish(error=error)

  def _or_end(self, call: Callable[..., None]) -> Callable[..., None]:
    """Returns a callback whose error ends the agent: half done, others must take over."""

    def run(*args: Any) -> None:
      try:
        call(*args)
      except Exception as error:
        self._finish(error=error)

    return run

  def _finish(self, reason: str = "", *, error: BaseException | None = None) -> None:
    """Ends the agent; the first reason counts."""
    if self.is_ending:
      return
    if self.is_done:
      self._say(is_done=True)
    if error is None:
      self._end.set_result(reason)
    else:
      self._end.set_exception(error)

  def _restart(self, why: str) -> None:
    """Ends this agent; a new one, with a new worker, replaces it."""
    if not self.is_ending:
      self.must_restart = True
      self._finish(why)

  def _say(self, **changes: Any) -> None:
    """Changes what this agent says of itself, and tells all."""
    self._said = msgspec.structs.replace(self._said, **changes)
    self.roster.note(self.incarnation, self._said, self._now())
    self._tell(self._said)

  def _warn(self, text: str) -> None:
    """Logs a warning, the same one at most every few seconds."""
    if (now := self._now()) >= self._warned_secs.get(text, 0.0):
      # Several steps may word the same problem differently.
      later = {t: s for t, s in self._warned_secs.items() if s > now}
      self._warned_secs = {**later, text: now + _WARN_SECS}
      self._log(logging.WARNING, "%s", text)

  @contextlib.contextmanager
  def _warned(self) -> Iterator[None]:
    """Warns of a failure to reach the judge, after which it goes on."""
    try:
      yield
    except OSError as error:
      self._warn(f"{error}")

  async def _retry(self, call: Any, *args: Any, for_secs: float = math.inf) -> Any:
    """Calls until it succeeds, or raises `OSError` after a while without an answer."""
    end_secs = None
    while True:
      try:
        return await call(*args)
      except OSError as error:
        end_secs = self._now() + for_secs if end_secs is None else end_secs
        await asyncio.sleep(_RETRY_SECS)
        if self._now() >= end_secs:
          raise
        self._warn(f"{error} Trying again.")

  async def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
    """Asks the judge while this node joins.

    A joining node may have a wrong address, so it gives up sooner than a restarted one.
    """
    for_secs = _AGAIN_GIVE_UP_SECS if self.options.is_again else _GIVE_UP_SECS
    return await self._retry(self._judge, function, *args, for_secs=for_secs)

  async def _mark(self, key: str, value: Mapping[str, Any]) -> None:
    """Writes a mark with the time of day, for `bamboo status`."""
    await self._judge(Records.mark, key, {"at_secs": time.time(), **value})

  # A join.
  #
  #   this agent           judge          others
  #       |-- 1 same run? ---->|              |
  #       |<- 2 number --------|              |
  #       |-- 3 address ------>|-- "marks" -->|
  #       |<----------------- 4 dial; views, assignment
  #       |   5 is this the start, are members alive, or is the run over?
  #       |                    |              |
  #       |   6 starts its worker, which receives the assignment, compiles, and
  #       |     reports that it is ready
  #       |------------------ 7 "ready" ----->|
  #       |                    |<- 8 view N+1 with it, by the leader
  #       |<----------------- 9 "view" -------|
  #
  # If the run starts without a node, the worker of that node is useless: the agent
  # starts over with a new one. Once joined, all agents are alike.

  async def _join(self) -> None:
    """Joins the run, and starts the steps that last until its end."""
    options, roster = self.options, self.roster
    if not options.is_again:
      await self._ask(Records.probe, self.incarnation)
    begun = await self._find_run()
    if await self._end_if_done(self._ask):
      return
    number = await self._take_number(begun)
    port = await self._mesh.listen(
        options.host,
        hello=lambda: messages.Hello(roster.own, self.stamp),
        on_came=self._or_end(self._welcome),
        on_message=self._or_end(self._hear),
    )
    roster.me = views.Member(
        number, options.name, options.zone, self.incarnation, options.host, port
    )
    roster.known[self.incarnation] = roster.me
    await self._retry(self._show, for_secs=_GIVE_UP_SECS)
    self._start(self._follow)
    await self._find_origin()
    self._start(self._worker)
    if options.notices is not None:
      self._take_notice(await notices_lib.wait_notice(options.notices))

  async def _end_if_done(self, call: Callable[..., Awaitable[Any]]) -> bool:
    """Ends if all steps of the run are done: members may have told nobody before they ended."""
    if is_done := await call(Records.find, f"done/{self.run_id}") is not None:
      self._log(logging.INFO, "All steps of the run in %s are done.", self.options.workdir)
      self._finish()
    return is_done

  async def _find_run(self) -> views.View:
    """Finds the run of the folder, and joins it; returns its newest view.

    A run of another config is refused; if nobody of it is left, another begins.
    """
    options = self.options
    while True:
      view: views.View = await self._ask(judge.newest_view)
      fault = judge.explain_living(view)
      if not judge.is_alone(view):
        own = judge.describe_run(self.incarnation, options.config)
        run = await self._ask(Records.make, f"run/{view.run}", own)
        difference = judge.find_difference(run["config"], options.config)
        fault = f"This node does not fit the run in {options.workdir}: {difference}."
        if not difference:
          self.run_id, self.stamp = view.run, run["id"]
          return view
      patience_secs = options.limits.most_silence_secs
      newest, _ = await judge.replace_run(self._ask, view, options.name, patience_secs)
      if newest.run == view.run:
        raise ValueError(fault)

  async def _take_number(self, begun: views.View) -> base.NodeId:
    """Returns the number of this node, once all of the first nodes are known.

    If some of them do not join in time, numbers follow the order of joining.
    `begun` is the newest view: the first nodes join before the run has any other.
    """
    options, prefix = self.options, f"tickets/{self.run_id}"
    own = {"zone": options.zone, "incarnation": self.incarnation, "name": options.name}
    ticket, there = await self._ask(Records.newest, prefix, -1), None
    while there != own:
      ticket += 1
      if ticket >= types.MAX_NODES:
        raise ValueError(
            f"The run in {options.workdir} has had {types.MAX_NODES} nodes, dead ones included, "
            "and can have no more. End it and start it again: it goes on from the last checkpoint."
        )
      there = await self._ask(Records.make, f"{prefix}/{ticket}", own)
    if begun.number > self.run_id or ticket >= options.num_nodes:
      return base.NodeId(ticket)
    tickets: list[dict[str, str]] = []
    end_secs = self._now() + options.limits.gather_secs
    while True:
      tickets += await self._ask(Records.follow, prefix, len(tickets) - 1)
      is_complete = len(tickets) >= options.num_nodes
      if is_complete or self._now() >= end_secs:
        is_placed = await self._ask(Records.make, f"placed/{self.run_id}", is_complete)
        self.roster.is_short = not is_placed
        first = _order(tickets[: options.num_nodes])
        return base.NodeId(options.place(first)[base.NodeId(ticket)] if is_placed else ticket)
      await asyncio.sleep(_RETRY_SECS)

  async def _find_origin(self) -> None:
    """Waits until it is known whether to join members or to start the run."""
    roster = self.roster
    while True:
      if roster.registered is not None:  # The records have been read.
        if not roster.view.members:
          self._epoch = roster.origin = roster.view.number
          return
        if roster.connected.intersection(roster.living):
          self._epoch = roster.view.epoch
          return
      await asyncio.sleep(_RETRY_SECS)

  async def _say_ready(self) -> None:
    """Reports that the node is ready, once it knows which members it reaches, and hears these."""
    roster = self.roster
    hears = lambda i: self._watch.silent_secs(i, self._now()) is not None
    while any(
        i not in roster.connected or not hears(i)
        for i in {*roster.members} - roster.unreachable.keys() - {self.incarnation}
    ):
      await asyncio.sleep(_RETRY_SECS)
    self._say(is_ready=True, origin=roster.origin)
    self._is_due.set()

  # Connections with other agents.
  #
  # A closed connection is no evidence of a death, but a failed reconnect is: if the
  # process of an agent is gone, its host refuses connections within milliseconds.
  #
  #     this agent        the other          all members
  #        |--- connected ---->|
  #        |<-- closed --------|                  |    1. it broke
  #        |--- dial --------->|                  |    2. at once
  #        |<-- connected -----|                  |    3a. it is alive: `_resend`
  #        |== what it missed >|                  |
  #        |<-- refused        x                  |    3b. `_fail`: certain
  #        |--- or no answer - x                  |    3c. `_fail`: a suspicion
  #        |--- "say": suspects ------------- -->|    4. see `suspicion`
  #        |--- dial - - - - - x                  |    5. retry
  #        |--- dial --------->|                  |    6. its host accepts:
  #        |                   |                  |       `_mend`; it may be busy

  def _welcome(self, member: views.Member) -> None:
    """Handles an agent that has connected to this one."""
    if member.incarnation not in self.roster.left:
      self._watch.add(member.incarnation, self._now())
      self._dial([member])

  def _dial(self, members: Iterable[views.Member]) -> None:
    """Stays connected to other agents from now on."""
    roster = self.roster
    for member in members:
      who = member.incarnation
      if who not in roster.left and who not in roster.known:
        roster.known[who] = member
        self._links[who] = self._start(self._stay_connected, member)

  async def _stay_connected(self, member: views.Member) -> None:
    """Connects to an agent again and again, until it has left."""
    roster, who = self.roster, member.incarnation
    is_first, reason = True, ""
    while not self.is_ending:
      last_secs = roster.dialed_secs.get(who, -math.inf)
      if not is_first:
        if who in roster.unreachable or self._now() - last_secs < _REDIAL_SECS:
          await asyncio.sleep(_REDIAL_SECS if roster.view.find(who) else _SLOW_REDIAL_SECS)
        else:
          self._log(logging.INFO, "%s: %s. Connecting again.", member.name, reason)
        roster.dialed_secs[who] = self._now()
      is_first = False
      try:
        async with self._mesh.connect(member, lambda: self._mend(who)) as closed:
          roster.connected.add(who)
          roster.unreachable.pop(who, None)
          self._resend(member)
          self._is_news.set()
          reason = await closed
        roster.connected.discard(who)
      except OSError as error:
        roster.connected.discard(who)
        if self.is_ending:
          return
        is_gone = isinstance(error, mesh_lib.GoneError)
        self._is_news.set()
        if is_gone and not roster.view.find(who):
          self._links.pop(who, None)
          roster.drop(who)
          with self._warned():  # One that lives marks itself again.
            await self._judge(Records.drop, f"nodes/{who}")
          return
        why = f"its agent cannot be reached: {error}"
        roster.unreachable[who] = messages.Suspect(who, why, is_gone)

  def _mend(self, who: str) -> None:
    """Withdraws the suspicion of an agent whose host accepts connections again.

    The network was then the cause of the refusal. If this agent or the other is
    not a member, the suspicion stays until they are connected.
    """
    if self.roster.is_member and self.roster.view.find(who):
      if self.roster.unreachable.pop(who, None) is not None:
        self._watch.excuse(who, self._now())
        self._suspect()

  def _resend(self, member: views.Member) -> None:
    """Sends what an agent that is connected may have missed."""
    roster, who = self.roster, member.incarnation
    if member.name == roster.own.name and member.number < roster.own.number:
      why = f"Another node {member.name!r} of this run is alive; give each node its own name."
      self._finish(error=ValueError(why))
    recent = roster.recent_views()
    for message in (self._said, *map(messages.NewView, recent)):
      self._tell(message, [who])
    self._tell_start([who])
    for view in recent:
      if view.find(who):
        for post in self._board.own(view.number):
          self._tell(post, [who])

  def _tell_start(self, to: Iterable[str]) -> None:
    """Tells newcomers the layout."""
    if self._layout is not None and self.roster.is_member:
      self._tell(self._layout, [i for i in to if not self.roster.view.find(i)])

  def _say_gone(self, reason: str) -> None:
    self._say(gone=reason, silent_secs=self._watch.worker_silent_secs(self._now()))

  def _hear(self, who: str, message: Any) -> None:
    """Handles a message of another agent."""
    roster, now = self.roster, self._now()
    if who in roster.left or self.is_ending:  # It was removed while suspended.
      return
    if self._watch.note(who, now):
      # Agents that suspect it receive this too, and take it back. If it is the first of all that
      # is heard again, this agent was cut off, and others are about to follow.
      heard_none = {*roster.members} <= {*self._watch.find_quiet(now), who, roster.incarnation}
      self._suspicions.wait_again(self._watch.awake(now), who="" if heard_none else who)
    match message:
      case messages.Post():
        if (member := roster.known.get(who)) is not None:
          self._board.post(member.number, message)
          self._deliver(message.view)
      case messages.Beat(view=view) if view >= roster.view.number:
        self._heard.add(who)  # What a link has held since before the view is no sign of life.
      case messages.Say():
        if message.silent_secs is not None and who not in roster.gone:
          self._watch.note_end(who, now, message.silent_secs)
        roster.note(who, message, now)
        if message.failed and roster.view.find(who):
          self._finish(error=base.RunFailedError(message.failed))
        self._is_news.set()
      case messages.NewView(view):
        # Members must know the views in between, in which others wait for them. A joining node
        # that has missed its first view is one, too; that of a copy is in the copy.
        known, first = roster.view.number, view.number
        if not roster.is_member:
          first = (view.repeats or first) if view.find(self.incarnation) else known
        if not known or known >= first - 1:
          self._adopt(view)
        elif view.number > known:
          self._start_once(self._catch_up)
      case messages.Beginning():
        self._received = message
        if self.has_worker and roster.origin is None:
          self._worker_process.send(message)

  async def _beat(self) -> None:
    """Sends heartbeats, and looks at silence and the own worker, until the end."""
    limits, beaten_secs = self.options.limits, -math.inf
    while True:
      await asyncio.sleep(limits.heartbeat_secs)
      now = self._note_time()
      self._watch.tick(now)
      self._worker_process.reap_orphans()
      if self._worker_process.is_busy():
        self._watch.note_busy(now)
      if _HANG_SECS <= now - self._folder_secs < _LASTING_HANG_SECS:
        self._watch.excuse_work(now)  # It may wait for the folder, too.
      if self.has_worker:
        is_stopped = self._worker_process.is_stopped()
        if fault := self._watch.find_fault(now, is_stopped=is_stopped):
          self._fault = fault
          self._worker_process.kill_hanging()  # Fenced: it must not resume.
        # Of many agents each sends fewer.
        secs = max(_BEATS * limits.least_silence_secs, len(self._links) / _MOST_HEARD)
        if now >= beaten_secs + secs:
          beaten_secs = now
          self._tell(messages.Beat(view=self.roster.view.number))
      self._suspect()
      if self.roster.is_member:
        self._show_worker()
      self._end_with_others()
      if self._wanted() is not None:  # Time has passed.
        self._is_due.set()

  def _note_time(self) -> float:
    """Returns the time; after a suspension no suspicion is acted on at once."""
    now = self._now()
    if self._watch.was_away(now):
      self._suspicions.wait_again(self._watch.awake(now))
    return now

  def _suspect(self) -> None:
    """Broadcasts the suspicions of this agent if they have changed."""
    silent = {
        i: messages.Suspect(i, reason, is_certain=False)
        for i, reason in self._watch.find_silent(self._now()).items()
    }
    found = silent | self.roster.unreachable
    suspects = tuple(found[i] for i in sorted(found.keys() - self.roster.done))
    if suspects == self._said.suspects:
      return
    for s in suspects:
      if not self._suspicions.suspects(s.incarnation):
        member = self.roster.known.get(s.incarnation)
        name = member.name if member else "an agent that is not known here"
        self._log(logging.INFO, "Suspects %s: %s", name, s.reason)
    self._say(suspects=suspects, count=self._said.count + 1)

  def _show_worker(self) -> None:
    """Tells the worker its view, and whether another is due, for which it should wait."""
    roster = self.roster
    is_due = any(i in roster.gone or self._suspicions.suspects(i) for i in roster.members)
    shown = messages.NewView(views.original(roster.view), is_due, self._settled)
    if self.has_worker and shown != self._shown:
      self._shown = shown
      self._worker_process.send(shown)

  # A death, and how a new view is made.
  #
  #    the dead       leader                       judge           others
  #       x              |                            |               |
  #       |-- 1 connections closed, and refused; or silence --------->|
  #       |              |<-- 2 "say": suspects --------------------->|
  #       |              |--- 3 view N+1, if none is ->|              |
  #       |              |--- 4 "view": N+1 ------------------------->|
  #       |              |                            |               |
  #       |        5 each tells its worker, which interrupts the step
  #       |              |<-- 6 "post" of begun, status and so on --->|
  #
  # 1 an agent whose worker died reports it: "gone"; 2 `Roster` decides which nodes to
  # remove and which to admit; 3 `_propose`: of several proposals the first that is
  # recorded counts, see `judge`; 4 `_adopt`: an agent that missed the message reads the
  # view, see `_follow`. Only now are connections with the dead cut.
  #
  # If the leader does not act, the next member does. An agent that seems cut off waits,
  # so that the others propose first.

  async def _react(self) -> None:
    """Reacts once to all messages of a few milliseconds, until the end.

    In large clusters every agent reports every death.
    """
    while await self._is_news.wait():
      self._is_news.clear()
      self._suspect()
      self._is_due.set()
      await asyncio.sleep(_SOON_SECS)

  async def _propose(self) -> None:
    """Proposes views when they are due and it is this agent's turn, until the end.

    An agent that has lost most others waits for them, as it may be the one that
    is cut off or was suspended. If they do not refuse connections, it asks.
    """
    roster = self.roster
    while await self._is_due.wait():
      self._is_due.clear()
      await asyncio.sleep(0)  # What has come by now belongs to one view.
      while (view := self._wanted()) is not None:
        try:
          doubt = roster.doubt(view, self._now())
          if doubt == roster_lib.Uncertainty.GREAT:
            await self._ask_lost(view)
          elif doubt and roster.patient_for < view.number:
            await asyncio.sleep(_PATIENCE_SECS)
            roster.patient_for = view.number
          else:
            await self._make(view)
        except OSError as error:
          self._warn(f"{error} Trying again.")
          await asyncio.sleep(_RETRY_SECS)

  async def _ask_lost(self, view: views.View) -> None:
    """Asks in the log those that `view` removes, and waits.

    Only without an answer it may be made; if one answers, all wait for the
    network.
    """
    roster = self.roster
    asked = roster.view
    whom = [m for m in asked.members if not view.find(m.incarnation)]
    if not asked.is_ask or not {m.number for m in whom} <= {*asked.asked}:
      asked = await self._make(views.ask(asked, self.options.name, whom))
    patience_secs = self.options.limits.most_silence_secs
    if all(self._suspicions.is_refused(m.incarnation) for m in whom):
      # Their hosts are not stopped, so those alive look at the log meanwhile.
      patience_secs = min(patience_secs, 2 * _LOOK_SECS)
    if self._asked[0] != asked.number:
      self._asked = (asked.number, self._watch.awake(self._now()))
    end_secs = self._asked[1] + patience_secs
    while self._watch.awake(self._now()) < end_secs:
      await asyncio.sleep(self.options.limits.heartbeat_secs)
      due = self._wanted()
      if due is None or roster.doubt(due, self._now()) < roster_lib.Uncertainty.GREAT:
        if not all(self._suspicions.suspects(m.incarnation) for m in whom):
          self._asked = (0, 0.0)  # A later suspicion waits from its own beginning.
        return
    self._asked = (0, 0.0)  # If the judge cannot be read now, those asked could not answer.
    await self._read()
    if asked.is_ask and roster.view.number == asked.number:
      roster.patient_for = asked.next_number

  def _wanted(self) -> views.View | None:
    """Returns the view that this agent has to propose now, or None."""
    roster, now = self.roster, self._note_time()
    if self.is_ending or not self.has_worker:
      return None
    begins = not roster.view.members
    lost = {} if begins else roster.find_lost(now)
    joining = roster.find_first(now) if begins else roster.find_newcomers()
    if lost is None or joining is None:
      return None
    view = views.next_view(roster.view, lost=lost, candidates=joining, noticed=roster.noticed)
    if view is roster.view:
      self._due = (0, 0.0)
      return None
    if self._due[0] != view.number:
      self._due = (view.number, now)
    over = lost.keys() | roster.done
    turns = [
        m.incarnation
        for m in (sorted(joining) if begins else roster.view.members)
        if m.incarnation not in over
    ]
    if self.incarnation not in turns:
      return None
    wait_secs = _HANDOVER_SECS * turns.index(self.incarnation)
    return view if now >= self._due[1] + wait_secs else None

  async def _make(self, view: views.View) -> views.View:
    """Makes the view after the current one; returns and adopts the one that is there."""
    lost = [i for i in self.roster.members if not view.find(i)]
    found = [self._watch.silent_secs(i, self._now()) for i in lost]
    if (known := [secs for secs in found if secs is not None]) and len(known) == len(lost):
      view = dataclasses.replace(view, silence_secs=max(known))
    made: views.View = await self._judge(judge.make_view, self.roster.view, view)
    self._learn([made])
    return made

  async def _read(self) -> None:
    """Reads all views unknown here, in order; only the last if none is known."""
    if not self.roster.view.number:
      self._learn([await self._judge(judge.newest_view)])
    else:
      self._learn(await self._judge(judge.views_after, self.roster.view.number))

  def _learn(self, found: Collection[views.View]) -> None:
    """Adopts views that were read, in order."""
    for view in found:
      if view.number > self.roster.view.number:
        self._tell(messages.NewView(view))  # Others may not reach the judge.
        self._adopt(view)

  async def _catch_up(self) -> None:
    """Reads the log, which settles the doubts that the worker had before.

    While this agent was suspended, a view without this node may have been made;
    then it is in the log, even if the message is still unread.
    """
    doubts = self._doubts
    await self._retry(self._read)
    if not self.is_ending:
      self._settled = doubts
      self._show_worker()

  def _adopt(self, view: views.View) -> None:
    """Adopts a view if it is newer, and tells the worker."""
    roster, former = self.roster, self.roster.view
    if view.repeats > former.number:  # A newcomer has missed it.
      self._adopt(views.original(view))
    was_in, former = roster.is_member, roster.view
    if view.number <= former.number:
      return
    roster.adopt(view)
    self._heard.clear()
    self._log(logging.INFO, "View %d: %s", view.number, view.text)
    self._leave_out(former, view)
    if view.run != self.run_id:
      self._restart("another run has begun in the folder")
    elif view.repeats:  # The worker knows the original.
      if view.is_ask:
        self._start_once(self._answer)
    elif roster.is_member:
      self._watch.excuse_work(self._now())
      self._show_worker()
      self._deliver(view.number)
    elif was_in and view.members:
      if self._cause:
        self._start_once(self._stand_by)
      else:
        self._finish(f"the others continue without it: {view.reason}")
    elif roster.me is not None and roster.me.number in view.numbers:
      self._restart("another node has its number")
    elif self._epoch is not None:
      self._compare_origin(view)
    self._is_due.set()

  def _leave_out(self, former: views.View, view: views.View) -> None:
    """Cuts connections with removed nodes; connects to the members of a view."""
    roster = self.roster
    for who in [m.incarnation for m in former.members if not view.find(m.incarnation)]:
      if not view.members or who == self.incarnation:
        continue
      # An agent whose worker died may be needed for a restart.
      if who not in roster.gone:
        roster.left.add(who)
        roster.drop(who)
        if (link := self._links.pop(who, None)) is not None:
          link.cancel()
        self._mesh.forget(who)
      self._watch.drop(who)
    others = [m for m in view.members if m.incarnation != self.incarnation]
    for member in others:
      self._watch.add(member.incarnation, self._now())
    self._dial(others)

  def _compare_origin(self, view: views.View) -> None:
    """Restarts this agent if its worker started from an outdated view."""
    origin = self.roster.origin
    if not view.members:
      if origin != view.number:
        self._restart(view.reason)
    elif view.epoch != self._epoch:
      self._restart("the run has restarted")
    elif origin is not None:
      self._restart(f"view {view.number} started without it")
    else:
      self._show_worker()  # It waits for one that it is in.

  async def _answer(self) -> None:
    """Answers a question in the log: this member is alive."""
    roster = self.roster
    while (asked := roster.view).is_ask and roster.is_at_work and not self.is_ending:
      if asked.asked and roster.own.number not in asked.asked:
        return
      await self._retry(self._make, views.answer(asked, self.options.name))

  async def _follow(self) -> None:
    """Finds views and agents that this agent has not heard of, until the end."""
    while True:
      self._folder_secs = min(self._folder_secs, self._now())
      with self._warned():
        await self._read()
        await self._look_for_agents()
        self._folder_secs = math.inf
      await asyncio.sleep(_LOOK_SECS if self.roster.is_member else _FIRST_LOOK_SECS)

  async def _look_for_agents(self) -> None:
    """Connects to marked agents; marks this one until it is a member."""
    roster, me = self.roster, self.incarnation
    if me in roster.members[_NUM_LOOKERS:]:
      return  # Who comes connects to all members.
    found = {*await self._judge(Records.names, "nodes")}
    is_due = not roster.view.members and self._now() >= self._marked_secs + _LOOK_SECS
    if is_due or me not in found:
      await self._show()
    there = []
    for life in sorted(found - roster.known.keys() - roster.left):
      if (value := await self._judge(Records.find, f"nodes/{life}")) is not None:
        there.append(msgspec.convert(value["member"], views.Member))
    if me in roster.members[:1]:
      for life in sorted(found & roster.left):  # They may be unable to.
        await self._judge(Records.drop, f"nodes/{life}")
    roster.registered = found - roster.left
    self._dial(there)

  async def _show(self) -> None:
    """Shows others where this agent listens, and that it lives."""
    self._marked_secs = self._now()
    awake_secs = self._watch.awake(self._now())
    value = {"member": self.roster.own, "awake_secs": awake_secs}
    await self._mark(f"nodes/{self.incarnation}", value)

  # A run that has lost all members.
  #
  # An agent that is not a member checks whether the members of the view are gone:
  # they have said so, or cannot be reached. It may merely be cut off, so it then
  # asks them in the log of views. If none answers, it makes a view without members,
  # from which all agents begin another life, with a new worker, at the newest
  # checkpoint. It is another run if nobody is left of the former one.
  #
  #   newcomer                         judge                 a member, if one lives
  #      |-- 1 view N+1, "asks" -------->|                             |
  #      |                               |<-- 2 reads, every 2 s ------|
  #      |   3 waits                     |<-- 4 view N+2, "is alive" --|
  #      |-- 5 view N+2, no members ---->|
  #      |<- 6 which of both is there ---|

  async def _end_runs(self) -> None:
    """Restarts the run whenever no member has been reachable for long enough, until the end."""
    since_secs = math.inf
    while True:
      await asyncio.sleep(self.options.limits.heartbeat_secs)
      since_secs = min(since_secs, self._now()) if self._seems_over() else math.inf
      if self._now() >= since_secs + self._find_patience():
        await self._ask_members()
        since_secs = math.inf

  def _seems_over(self) -> bool:
    """Whether no member is reachable; never if this node is one."""
    roster = self.roster
    if not roster.view.members or roster.is_at_work:
      return False
    return all(map(self._suspicions.suspects, roster.living))

  def _find_patience(self) -> float:
    """Returns how long to wait: longer if members may be alive but cut off."""
    if all(map(self._suspicions.is_refused, self.roster.living)):
      return _ALONE_SECS
    # A permanently broken link must not fill the folder with questions.
    return self.options.limits.most_silence_secs * min(self._num_answers + 1, 8)

  async def _ask_members(self) -> None:
    """Asks the members in the log; without an answer, makes a view without members."""
    call = lambda *args: self._retry(self._judge, *args)
    await self._retry(self._read)
    if await self._end_if_done(call):
      return
    roster = self.roster
    is_nobody_left = not self.options.is_again and len(roster.living) == len(roster.members)
    if roster.living:
      patience_secs = self.options.limits.most_silence_secs
      asked = await judge.ask(call, roster.view, self.options.name, patience_secs)
      self._learn([asked])
      if not asked.is_ask or roster.view != asked:
        self._num_answers += 1  # Members are alive, only unreachable from here.
        return
    while not self.is_ending and self._seems_over():
      over = views.over(roster.view)
      if is_nobody_left:
        over = views.begin_run(roster.view, over.reason)
      await self._retry(self._make, over)

  # The worker.

  async def _worker(self) -> None:
    """Starts the worker, and awaits its end."""
    options, process = self.options, self._worker_process
    since = f"{self._begun_secs:.3f}"
    command = [*options.command, str(self.roster.own.number), self.stamp, since]
    await process.start(command, log=options.log, on_message=self._or_end(self._hear_worker))
    self.has_worker = True
    self._watch.begin(self._now())
    if (origin := self.roster.origin) is not None:
      process.send(messages.Beginning({"restart": True} if origin > self.run_id else {}))
    elif self._received is not None:
      process.send(self._received)
    self._show_worker()
    code = await process.wait()
    if not self.is_ending:
      await self._end_worker(code)

  def _hear_worker(self, message: Any) -> None:
    """Handles a message of the worker."""
    roster, me = self.roster, self.incarnation
    if self.is_ending:
      return
    self._watch.note_worker(self._now())
    match message:
      case messages.Post() if self._board.post_own(roster.own.number, message):
        members = {m.incarnation for m in roster.find_view(message.view).members}
        self._tell(message, sorted(members - {me}))
        self._deliver(message.view)
      case messages.Beat():
        logs.note_step(message.step)
        self._watch.note_progress(message, self._now())
        self._board.move_to(message.view)
        # Many views may have passed since the one in which others still wait.
        roster.drop_older(message.view, needed=self._board.own_views)
        self._doubts = message.doubts
        if self._doubts > self._settled:
          self._start_once(self._catch_up)
      case messages.Say(is_ready=True):
        self._watch.begin(self._now(), is_ready=True)
        roster.ready_secs = self._now()
        self._start(self._say_ready)
      case messages.Say(is_done=True):
        roster.done.add(me)
      case messages.Say(gone=gone, failed=failed) if gone or failed:
        self._say(gone=gone, failed=failed)
        self.has_left = not failed
        self._finish(error=base.RunFailedError(failed) if failed else None)
      case messages.Say(notice=reason) if reason:
        self._take_notice(reason)
      case messages.Say(layout=dict(layout)):
        self._layout = messages.Beginning(layout)
        self._report({"layout": layout})
        self._tell_start([*roster.known])
      case messages.Say(report=dict(report)):
        self._report(report)

  def _deliver(self, view: base.ViewId) -> None:
    """Gives the worker the keys that all members of a view have posted."""
    for gathered in self._board.take(view, self.roster.find_view(view).numbers):
      self._worker_process.send(gathered)

  def _report(self, status: Mapping[str, Any]) -> None:
    self.status |= status
    self._is_status_new = True
    self._start_once(self._write_status)

  async def _write_status(self) -> None:
    """Writes the newest status, at most once a second."""
    while self._is_status_new:
      self._is_status_new = False
      with self._warned():
        await self._mark(f"status/{self.run_id}", dict(self.status))
      await asyncio.sleep(_STATUS_SECS)

  async def _end_worker(self, code: int) -> None:
    """Ends, or has the others go on without this node."""
    roster = self.roster
    if self.is_done:
      self._finish()
      return
    reason = self._fault or f"its worker {children.describe_exit(code)}"
    # Others train with the same code, so what a newcomer meets is its own.
    is_new = roster.origin is None and not roster.is_member
    self.is_mistake = code == children.MISTAKE and not is_new
    # A worker that failed by itself would fail again.
    if code >= 0 or (self._fault and not roster.is_member):
      with self._warned():
        await self._read()  # If the run has restarted, the worker had to end.
      if self.is_done:  # The exit may be seen before the last messages are read.
        self._finish()
      elif not self.is_ending:
        self._say_gone(reason)
        self._finish(reason)
    elif not roster.is_member:
      self._restart(reason)
    else:
      self._cause = reason  # Others may continue without it.
      self._log(logging.INFO, "%s", reason)
      self._say_gone(reason)

  # How a node leaves.
  #
  #   cloud, scheduler       this agent           its worker          others
  #         |-- 1 notice -------->|                    |                 |
  #         |                     |-- 2 "say": notice ------------------>|
  #         |                     |<---- 3 view N+1, it is "leaving" ----|
  #         |                     |-- 4 view N+1 ----->|                 |
  #         |                     |        5 hands over, at the end of a step
  #         |                     |<-- 6 "say": gone --|                 |
  #         |                     |-- 7 "say": gone -------------------->| view N+2, without it
  #         |                     x ends, with status 143
  #
  # If it is killed before 6, this is a death. A worker that is slow gives the notice itself.

  def give_notice(self, reason: str) -> bool:
    """Announces a preemption: others take over, then this node exits.

    Returns whether they can.
    """
    roster = self.roster
    if is_news := roster.is_member and self.incarnation not in roster.noticed:
      self._say(notice=reason)
      self._is_due.set()
    return is_news

  def _take_notice(self, reason: str) -> None:
    if not self.give_notice(reason) and not self.roster.is_member:
      self._finish(f"it will be preempted ({reason}), and has not joined yet")

  async def _stand_by(self) -> None:
    """Ends after a while, unless no other member is alive by then either."""
    await asyncio.sleep(_SETTLE_SECS)
    roster = self.roster
    while not self.is_ending:
      alive = {*roster.living} - {*self._watch.find_quiet(self._now())}
      alive &= self._heard  # An unheard agent may have died meanwhile.
      if roster.done or any(not self._suspicions.suspects(i) for i in alive):
        self._finish(self._cause)
      await asyncio.sleep(_RETRY_SECS)

  def _end_with_others(self) -> None:
    """Ends once members have finished the run, unless this one does so with them."""
    roster = self.roster
    if roster.done.intersection(roster.members) and not roster.is_at_work:
      self._finish("" if self._is_late() else self._cause)
    if self._is_late():
      self._start_once(self._leave_late)

  def _is_late(self) -> bool:
    """Whether members have finished the run without this one.

    A node that finishes with them may still be writing; one that is only ready to
    finish may have missed that they did.
    """
    members, done = {*self.roster.members}, self.roster.done
    return (
        self.incarnation in members - done
        and bool(members & done)
        and not self._board.has_taken(messages.FINISHED)
    )

  async def _leave_late(self) -> None:
    await asyncio.sleep(self.options.limits.most_silence_secs)
    if self._is_late():
      self._finish()


def _order(tickets: list[dict[str, str]]) -> dict[base.NodeId, str]:
  """Returns the zones of nodes, by ticket.

  In the order of names (n2 before n10), not of joining, so that placement does
  not depend on which node joins first.
  """
  key = lambda n: (len(tickets[n]["name"]), tickets[n]["name"])
  return {n: tickets[n]["zone"] for n in sorted(base.nodes(len(tickets)), key=key)}
