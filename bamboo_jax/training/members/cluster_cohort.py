"""The cohort of a cluster: every member is a process that hosts one node.

Values are converted to JSON and sent through the agent.
"""

import collections
from collections.abc import Callable, Mapping
import os
import pathlib
import random
import signal
import statistics
import threading
import time
from typing import Any, TypeVar

from absl import logging

from bamboo_jax import base
from bamboo_jax.base import json as json_lib, logs
from bamboo_jax.cluster import client as client_lib, messages, records as records_lib, views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import nodes as nodes_lib
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.training.members import cohort as cohort_lib

T = TypeVar("T")
_MOST_PARTNERS = 512  # Nodes connected ahead, at most.
_ATTEMPT_BITS = 32  # Low bits of an attempt's number; the high ones: its view.
_REPORTS: dict[str, Callable[..., Any]] = {
    "done": messages.Done,
    "failed": messages.Failed,
    "facts": messages.Assignment,
    "leave": lambda: messages.Gone("handed over after a notice"),
    "report": messages.Report,
    "slow": messages.Notice,
}


class ClusterCohort:
  """A member of a cluster; transfers to other processes go through `exits`.

  It carries out the faults that hit its node, and notes them in `workdir`;
  `records` say which have happened.
  """

  def __init__(
      self,
      client: client_lib.Client,
      exits: "Exits",
      records: records_lib.Records,
      workdir: pathlib.Path,
      *,
      faults_run: int | None = None,
  ) -> None:
    self.number = client.number
    self.hosted = frozenset({client.number})
    self._client, self._exits = client, exits
    self._records, self._workdir = records, workdir
    self._struck: set[int] = set()  # Lines of the faults that have hit this process.
    self._tickets: dict[int, int] = {}  # That joins wait for, by line.
    self._faults_run = faults_run
    self._settled_secs = time.perf_counter()
    self._step_secs = collections.deque([1.0], maxlen=9)

  @property
  def view(self) -> views.View:
    return self._client.adopted

  @property
  def newest(self) -> views.View:
    return self._client.newest

  def host_of(self, node: base.NodeId) -> base.NodeId:
    return node

  def wait_start(self) -> cohort_lib.Start:
    facts = dict(self._client.wait_facts())
    members = frozenset(facts.pop("members", ()))
    layout = None
    if facts.get("pipelines"):
      layout = json_lib.from_plain(layout_lib.Layout, facts)
    is_restart = bool(facts.get("restart"))
    return cohort_lib.Start(layout, members, is_restart=is_restart)

  def enter(self) -> None:
    self._client.send(messages.Ready())
    first = self._client.wait_first()
    self._client.adopt(first)
    self._exits.adopt(first.number)

  def gather(self, key: str, value: T) -> dict[base.NodeId, T]:
    said = self._client.gather(key, json_lib.to_plain(value))
    kind = type(value)
    return {n: json_lib.from_plain(kind, v) for n, v in said.items()}

  def check(self) -> None:
    self._exits.check()
    self._client.note_progress()

  def retract(self) -> None:
    self._exits.transport.retract()

  def take_retracted(self) -> bool:
    return self._exits.transport.take_retracted()

  def wait_change(self, timeout_secs: float) -> views.View | None:
    view: views.View | None = self._client.wait_interrupt(timeout_secs)
    return view

  def wait_members(self, count: int, *, why: str = "") -> None:
    """Another node can always join a cluster."""
    del why
    self._client.wait_members(count)

  def adopt(self, number: base.ViewId) -> None:
    """Starts the first attempt in the view."""
    stopped_for = self._client.wait_interrupt(0)
    self._client.adopt(self._client.find_view(number))
    if stopped_for is None or stopped_for.number != number:
      self._client.post(number, "begun", json_lib.to_plain(self._exits.begun()))
    self._exits.adopt(number)

  def arrived_secs(self, number: base.ViewId) -> float:
    return self._client.arrived_secs(number)

  def died_secs(self, number: base.ViewId) -> float | None:
    """Only the launcher knows, so None."""
    del number
    return None

  def silent_secs(self, number: base.ViewId) -> Mapping[base.NodeId, float]:
    return self._client.silent_secs(number)

  def collect_addresses(self) -> None:
    begun = self._client.collect("begun").items()
    logs.note_names({m.number: m.name for m in self.view.members})
    self._exits.transport.set_addresses(
        {node: json_lib.from_plain(channel_lib.Begun, b).address for node, b in begun}
    )
    others = sorted(self.view.numbers - self.hosted)  # Any may be needed after a death.
    self._exits.transport.connect(others[:_MOST_PARTNERS])

  def settled(self, steps: base.StepId) -> None:
    """Starts the next attempt."""
    del steps
    self._exits.settled()
    before, self._settled_secs = self._settled_secs, time.perf_counter()
    self._step_secs.append(self._settled_secs - before)

  def report(self, kind: str, **facts: Any) -> None:
    """Reports of "leave" and "slow" are always about this node."""
    if kind in ("leave", "slow"):
      del facts["node"]
    self._client.send(_REPORTS[kind](**facts))

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
    victims = [member.number for member in cohort_lib.find_victims(due, self.view)]
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
    (name,) = (m.name for m in self.view.members if m.number == self.number)
    facts = {"kind": fault.kind, "line": fault.line, "number": self.number}
    try:
      nodes_lib.note(self._workdir, nodes_lib.FAULT, name, **facts)
    except OSError as error:
      logging.warning("Cannot tell of the fault in line %d: %s", fault.line, error)

  def _suffer(self, fault: faults_lib.Fault) -> None:
    """Lets a fault hit this node; its agent is the parent of this process."""
    self._note(fault)
    match fault.kind:
      case "notice":
        os.kill(os.getppid(), signal.SIGTERM)
      case "slow":
        pass  # `step.StepRunner` lets passes take longer.
      case "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
      case "node" | "leader" | "zone":
        os.kill(os.getppid(), signal.SIGKILL)  # This process ends with it.
        os.kill(os.getpid(), signal.SIGKILL)
      case _:
        os.kill(os.getpid(), signal.SIGKILL)


class Exits:
  """All transfers between this process and others.

  Each attempt of a step has a number: the view, and a counter that grows
  whenever all members of the view agree that no message is in flight. Messages
  carry it, so that members need not report what they have sent.
  """

  def __init__(
      self,
      transport: transport_lib.Transport,
      ring: Callable[[], tuple[base.NodeId, ...]] = lambda: (),
  ) -> None:
    """`ring` returns that of `channel.Begun`."""
    self.transport, self._ring, self._attempt = transport, ring, 0

  def begun(self) -> channel_lib.Begun:
    """Returns this member's address, and its open waits."""
    waits = sorted({*self.transport.open_waits()})
    return channel_lib.Begun(self.transport.address, tuple(waits), self._ring())

  def lose(self, view: views.View) -> dict[str, Any]:
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
    plain: dict[str, Any] = json_lib.to_plain(self.begun())
    return plain

  def adopt(self, view: base.ViewId) -> None:
    """Starts the first attempt in a view."""
    self._begin(view << _ATTEMPT_BITS)

  def settled(self) -> None:
    """Starts the next attempt; no message may be in flight."""
    self._begin(self._attempt + 1)

  def check(self) -> None:
    """Raises `base.AttemptOverError` after a loss."""
    self.transport.check()

  def _begin(self, attempt: int) -> None:
    self._attempt = attempt
    self.transport.begin(attempt)
