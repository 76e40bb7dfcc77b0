"""The processes that train together, as one of them sees them: a worker's cohort.

A *member* is a process; it hosts one node or several. Agents and sockets stay in
this file, so a worker runs in the same way alone and in a cluster:

  LocalCohort    one member that hosts all nodes: training in one process. A fault has
                 the effect of a death in a cluster: it makes a view without the victims,
                 so that `check` and `gather` raise; the worker then adopts the view.
  ClusterCohort  a process of a cluster, which hosts one node. Values are converted to
                 JSON and sent through the agent.

The methods of `LocalCohort` say what those of both do.
"""

import collections
from collections.abc import Callable, Mapping
import dataclasses
import os
import pathlib
import random
import signal
import socket
import statistics
import threading
import time
from typing import Any, TypeVar

from absl import logging

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import json as json_lib, logs
from bamboo_jax.cluster import client as client_lib, messages, records as records_lib, views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib

T = TypeVar("T")
ZONE = "a"  # Of all nodes of one process.

# The agents survive these: once all nodes are dead, they restart their workers.
_SPARES_AGENT = ("kill", "stop", "all")
_NUM_SAID = 16  # Last keys of a view that are checked against repetition.
_MOST_PARTNERS = 512  # Nodes connected ahead, at most.
_ATTEMPT_BITS = 32  # Low bits of an attempt's number; the high ones: its view.


@dataclasses.dataclass(frozen=True)
class Start:
  """The state of the run in which this member starts.

  Attributes:
    layout: The layout of the running members; None if training has not begun.
    members: Numbers of the running nodes, spares included.
    is_restart: Whether training has stopped and all survivors restart it from a
      checkpoint.
  """

  layout: layout_lib.Layout | None = None
  members: frozenset[base.NodeId] = frozenset()
  is_restart: bool = False


class LocalCohort:
  """The only member, which injects the faults of all nodes.

  Args:
    num_nodes: Number of nodes, spares included.
    seed: Decides when faults without a fixed time happen.

  Attributes:
    happened: Lines of the faults that have hit a node, and of joins.
    is_asked_to_stop: Whether to save and end the run after this step.
  """

  def __init__(self, num_nodes: int, *, seed: int = 0) -> None:
    self.number = base.NodeId(0)
    self._random = random.Random(seed)
    self._next = 0
    self._said: collections.deque[str] = collections.deque(maxlen=_NUM_SAID)
    self._views: dict[base.ViewId, tuple[views.View, float]] = {}  # And when it came.
    self._done: set[tuple[int, faults_lib.Fault]] = set()
    self.happened: set[int] = set()
    self.is_asked_to_stop = self._has_entered = False
    self._num_fallen = 0  # Dead nodes whose agents live.
    self._num_checks = self._checks_per_step = 0
    self._pending: list[tuple[int, faults_lib.Due]] = []
    self.newest = views.EMPTY
    self._change(come=num_nodes)
    self.view = self.newest

  @property
  def hosted(self) -> frozenset[base.NodeId]:
    """The live nodes that this member drives."""
    return frozenset(self.newest.numbers)

  def host_of(self, node: base.NodeId) -> base.NodeId:
    """Returns the member that hosts a node."""
    del node
    return self.number

  def wait_start(self) -> Start:
    """Blocks until the state in which this member starts is known."""
    return Start()

  def enter(self) -> None:
    """Joins: blocks until a view contains this member, and adopts it."""
    self._has_entered = True

  def ask_to_stop(self) -> bool:
    """Requests to save and end the run; False if training has not begun."""
    self.is_asked_to_stop = self._has_entered
    return self._has_entered

  def gather(self, key: str, value: T) -> dict[base.NodeId, T]:
    """Returns the values of all members of the view, by member; blocks.

    A key may be used once per view. Raises `base.ViewChangedError` if a member
    is lost.
    """
    self._raise_if_changed()
    assert key not in self._said, f"{key} is said twice in one view"
    self._said.append(key)
    return {self.number: value}

  def check(self) -> None:
    """Reports progress; raises `base.ViewChangedError` if a node is lost."""
    self._num_checks += 1
    due = [d for at, d in self._pending if at <= self._num_checks]
    self._pending = [p for p in self._pending if p[0] > self._num_checks]
    for d in due:
      self._strike(d)
    self._raise_if_changed()

  def retract(self) -> None:
    """Tells all members to use values of this attempt in no other; blocks.

    Returns once all know it; raises as a transfer does if a node is lost.
    """

  def take_retracted(self) -> bool:
    """Returns whether any member has called `retract` since the last call."""
    return False

  def wait_change(self, timeout_secs: float) -> views.View | None:
    """Returns the next view that lacks a node; None after a timeout; blocks."""
    del timeout_secs
    return self.newest if self._is_changed() else None

  def wait_members(self, count: int, *, why: str = "") -> None:
    """Blocks until the newest view has `count` nodes, or the run is to stop; raises as `check`.

    Raises `base.InfeasibleError` with the text `why` if no node can join.
    """
    if len(self.newest.members) < count:
      raise base.InfeasibleError(why)
    self._raise_if_changed()

  def adopt(self, number: base.ViewId) -> None:
    """Makes view `number` the one that this member works in."""
    self.view, _ = self._views[number]
    for old in [n for n in self._views if n < number]:
      del self._views[old]
    self._said.clear()

  def arrived_secs(self, number: base.ViewId) -> float:
    """Returns the time of arrival of a view, on `time.perf_counter`."""
    return self._views[number][1]

  def collect_addresses(self) -> None:
    """Learns where the members of a new view listen, and begins to connect to them.

    Ends transfers begun before. Blocks; raises `base.ViewChangedError` after another loss.
    """
    pass

  def settled(self) -> None:
    """Records that no message of the steps so far is in flight."""
    num = self._num_checks
    self._pending = [(at - num, due) for at, due in self._pending]
    self._checks_per_step, self._num_checks = num, 0

  def say(self, *nodes: base.NodeId, gone: str = "", notice: str = "", **others: Any) -> None:
    """Tells the agent, for joining nodes and observers, what `messages.Say` has.

    What is "gone", or gives "notice", are `nodes` of this member.
    """
    del others
    names = [f"n{node}" for node in nodes]
    if gone:
      self._change(lost=dict.fromkeys(names, gone))
    elif notice:
      self._change(noticed=dict.fromkeys(names, notice))

  def strike(self, due: faults_lib.Due) -> bool:
    """Carries out what a due fault does to the nodes of this member, once in a run.

    Returns whether it is a join whose node has come before.
    """
    key = (due.fault.line, due.fault)
    if key in self._done:  # The step may be repeated.
      return due.fault.kind == "join"
    self._done.add(key)
    if due.fault.kind == "join":
      self.happened.add(due.fault.line)
      self._change(come=1)
    elif due.fault.at is None:
      delay = self._random.randint(1, max(1, self._checks_per_step))
      self._pending.append((self._num_checks + delay, due))
    else:
      self._strike(due)
    return False

  def _strike(self, due: faults_lib.Due) -> None:
    victims = [member.name for member in find_victims(due, self.newest)]
    kind = due.fault.kind
    if not victims:
      return
    self.happened.add(due.fault.line)
    if kind == "slow":
      return  # `step.StepRunner` lets passes take longer.
    if kind == "notice":
      self._change(noticed=dict.fromkeys(victims, "a fault"))
      return
    if kind in _SPARES_AGENT:
      self._num_fallen += len(victims)
    come = 0
    if len(victims) == len(self.newest.members):
      come, self._num_fallen = self._num_fallen, 0
      if not come:
        raise ValueError(f"No live node is left after fault {due.fault}.")
    self._change(lost=dict.fromkeys(victims, kind), come=come)

  def _change(
      self,
      *,
      lost: Mapping[str, str] | None = None,
      noticed: Mapping[str, str] | None = None,
      come: int = 0,
  ) -> None:
    """Makes the next view: the nodes lost and under notice, with reasons by name, and new ones."""
    numbers = base.nodes(self._next, self._next + come)
    new = [views.Member(n, f"n{n}", ZONE, f"n{n}", "", 0) for n in numbers]
    logs.note_names({m.number: m.name for m in new})
    self._next += come
    self.newest = views.next_view(
        self.newest, lost=lost or {}, candidates=new, noticed=noticed or {}
    )
    self._views.setdefault(self.newest.number, (self.newest, time.perf_counter()))

  def _is_changed(self) -> bool:
    return not self.view.numbers <= self.newest.numbers

  def _raise_if_changed(self) -> None:
    if self._is_changed():
      raise base.ViewChangedError(self.newest.reason)


class ClusterCohort:
  """A member of a cluster; `transport` has its transfers to other processes.

  It carries out the faults that hit its node, and notes them in `workdir`;
  `records` say which have happened.

  Each attempt of a step has a number: the view, and a counter that grows
  whenever all members of the view agree that no message is in flight. Messages
  carry it, so that members need not report what they have sent.
  """

  client: client_lib.Client  # Once connected.

  def __init__(
      self,
      number: base.NodeId,
      transport: transport_lib.Transport,
      records: records_lib.Records,
      workdir: pathlib.Path,
      *,
      ring: Callable[[], tuple[base.NodeId, ...]] = lambda: (),
      faults_run: int | None = None,
  ) -> None:
    """`ring` returns that of `channel.Begun`."""
    self.number, self.hosted = number, frozenset({number})
    self.transport, self._ring, self._attempt = transport, ring, 0
    self._records, self._workdir = records, workdir
    self._struck: set[int] = set()  # Lines of the faults that have hit this process.
    self._tickets: dict[int, int] = {}  # That joins wait for, by line.
    self._faults_run = faults_run
    self._settled_secs: float | None = None
    self._step_secs = collections.deque([1.0], maxlen=9)

  def connect(self, agent: socket.socket, section: config_lib.ClusterSection) -> None:
    """Connects to the agent of this node."""
    self.client = client_lib.connect(
        agent,
        number=self.number,
        on_lost=self._lose,
        begun=self.begun,
        heartbeat_secs=section.heartbeat_secs,
        silence_secs=section.least_silence_secs,
    )
    self.transport.note = self.client.note_progress  # It has listened since before.

  def begun(self) -> channel_lib.Begun:
    """Returns this member's address, and its open waits."""
    waits = sorted({*self.transport.open_waits()})
    return channel_lib.Begun(self.transport.address, tuple(waits), self._ring())

  def _lose(self, view: views.View) -> Any:
    """Interrupts all transfers after a loss; returns `begun`, as JSON.

    Without it a member would wait forever for a survivor that waits for a dead
    node. The client calls it in its reading thread; before the first view, with
    an empty one.
    """
    self.transport.interrupt(
        f"a node is missing in view {view.number}", until=view.number << _ATTEMPT_BITS
    )
    if view.members:  # Messages for others are dropped.
      self.transport.keep_only(view.numbers, f"it is not in view {view.number}")
    return json_lib.to_plain(self.begun())

  def _begin(self, attempt: int) -> None:
    self._attempt = attempt
    self.transport.begin(attempt)

  @property
  def view(self) -> views.View:
    return self.client.adopted

  @property
  def newest(self) -> views.View:
    return self.client.newest

  def host_of(self, node: base.NodeId) -> base.NodeId:
    return node

  def wait_start(self) -> Start:
    facts = dict(self.client.wait_facts())
    members = frozenset(facts.pop("members", ()))
    layout = json_lib.from_plain(layout_lib.Layout, facts) if facts.get("pipelines") else None
    return Start(layout, members, is_restart=bool(facts.get("restart")))

  def enter(self) -> None:
    self.client.say(is_ready=True)
    first = self.client.wait_first()
    self.client.adopt(first)
    self._begin(first.number << _ATTEMPT_BITS)

  def gather(self, key: str, value: T) -> dict[base.NodeId, T]:
    said = self.client.gather(key, json_lib.to_plain(value))
    kind = type(value)
    return {n: json_lib.from_plain(kind, v) for n, v in said.items()}

  def check(self) -> None:
    self.transport.check()  # Raises `base.AttemptOverError` after a loss.
    self.client.note_progress()

  def retract(self) -> None:
    self.transport.retract()

  def take_retracted(self) -> bool:
    return self.transport.take_retracted()

  def wait_change(self, timeout_secs: float) -> views.View | None:
    return self.client.wait_interrupt(timeout_secs)

  def wait_members(self, count: int, *, why: str = "") -> None:
    """Another node can always join a cluster."""
    self.client.wait_members(count)

  def adopt(self, number: base.ViewId) -> None:
    """Starts the first attempt in the view."""
    stopped_for = self.client.wait_interrupt(0)
    self.client.adopt(self.client.find_view(number))
    if stopped_for is None or stopped_for.number != number:
      self.client.post(number, messages.BEGUN, json_lib.to_plain(self.begun()))
    self._begin(number << _ATTEMPT_BITS)

  def arrived_secs(self, number: base.ViewId) -> float:
    return self.client.arrived_secs(number)

  def collect_addresses(self) -> None:
    begun = self.client.collect(messages.BEGUN).items()
    logs.note_names({m.number: m.name for m in self.view.members})
    self.transport.set_addresses(
        {node: json_lib.from_plain(channel_lib.Begun, b).address for node, b in begun}
    )
    others = sorted(self.view.numbers - self.hosted)  # Any may be needed after a death.
    self.transport.connect(others[:_MOST_PARTNERS])

  def settled(self) -> None:
    """Starts the next attempt."""
    self._begin(self._attempt + 1)  # No message is in flight.
    before, self._settled_secs = self._settled_secs, time.perf_counter()
    if before is not None:  # Else this node has started, which takes longer than a step.
      self._step_secs.append(self._settled_secs - before)

  def say(self, *nodes: base.NodeId, **changes: Any) -> None:
    """It is always about this node."""
    del nodes
    self.client.say(**changes)

  def strike(self, due: faults_lib.Due) -> bool:
    fault, run = due.fault, self.view.run
    # If all agents die, new ones begin another run, in which no fault is repeated.
    key = f"faults/{run if self._faults_run is None else self._faults_run}/{fault.line}"
    if fault.kind == "join":
      drawn: int = base.ask_again(lambda: self._records.newest(f"tickets/{run}", -1))
      others = [ticket for line, ticket in self._tickets.items() if line != fault.line]
      own = [run, max([drawn, *others]) + 1]
      there: list[int] = base.ask_again(lambda: self._records.make(key, own))
      of_run, ticket = there
      if of_run != run:
        return True
      self._tickets[fault.line] = ticket
      if ticket > drawn and fault.line not in self._struck:
        self._struck.add(fault.line)
        self._note(fault)  # The launcher starts a node.
      return ticket <= drawn
    victims = [member.number for member in find_victims(due, self.view)]
    if self.number in victims and fault.line not in self._struck:
      self._struck.add(fault.line)
      # A step that is repeated with other owners has the victims of the first time.
      of_run, numbers = base.ask_again(lambda: self._records.make(key, [run, victims]))
      if of_run == run and self.number in numbers:
        if fault.at is not None:
          self._suffer(fault)
        else:  # All victims draw the same time.
          secs = random.Random(fault.line).random() * statistics.median(self._step_secs)
          timer = threading.Timer(secs, self._suffer, (fault,))
          timer.daemon = True
          timer.start()
    return False

  def _note(self, fault: faults_lib.Fault) -> None:
    facts = {"kind": fault.kind, "line": fault.line, "number": self.number, "run": self.view.run}
    try:
      jsonl.note_node(self._workdir, jsonl.FAULT, logs.name_of(self.number), **facts)
    except OSError as error:
      logging.warning("Cannot tell of the fault in line %d: %s", fault.line, error)

  def _suffer(self, fault: faults_lib.Fault) -> None:
    """Lets a fault hit this node; its agent is the parent of this process."""
    self._note(fault)
    if fault.kind in ("node", "leader", "zone", "notice"):
      os.kill(os.getppid(), signal.SIGTERM if fault.kind == "notice" else signal.SIGKILL)
    if fault.kind not in ("slow", "notice"):  # `step` lets passes of a slow node take longer.
      os.kill(os.getpid(), signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL)


Cohort = LocalCohort | ClusterCohort


def acts(cohort: Cohort, layout: layout_lib.Layout) -> bool:
  """Returns whether this member acts for all.

  It hosts the lowest live node with a role in the layout, or the lowest of the
  view if none is live. Before the first view all are.
  """
  alive = cohort.view.numbers or layout.nodes
  return min(layout.nodes & alive or alive) in cohort.hosted


def find_victims(due: faults_lib.Due, view: views.View) -> list[views.Member]:
  """Returns the members of a view that a fault hits."""
  fault, members = due.fault, view.members
  match fault.kind:
    case "all":
      return [*members]
    case "zone":
      return [m for m in members if m.zone == fault.node]
    case "leader":
      return [*members[:1]]
  if due.owner is not None:
    return [m for m in members if m.number == due.owner]
  return [m for m in members if m.name == fault.node]


def zones_of(view: views.View) -> Mapping[base.NodeId, str]:
  """Returns the zone and host of each node of a view, as `recovery.placement` takes them."""
  return {member.number: f"{member.zone}|{member.host}" for member in view.members}
