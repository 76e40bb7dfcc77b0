"""The cohort of a cluster: every member is a process that hosts one node.

Values are converted to JSON and sent through the agent.
"""

from collections.abc import Callable, Mapping
import os
import select
import socket
from typing import Any, TypeVar

from bamboo_jax import base
from bamboo_jax.base import json as json_lib, logs
from bamboo_jax.cluster import client as client_lib, frames, messages, views
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.training.members import cohort as cohort_lib

T = TypeVar("T")
_MOST_PARTNERS = 512  # Nodes connected ahead, at most.
_ATTEMPT_BITS = 32  # Low bits of an attempt's number; the high ones: its view.
_REPORTS = {
    "done": messages.Done,
    "failed": messages.Failed,
    "facts": messages.Assignment,
    "leave": messages.Leave,
    "report": messages.Report,
    "slow": messages.Slow,
}


class ClusterCohort:
  """A member of a cluster; transfers to other processes go through `exits`."""

  def __init__(self, client: client_lib.Client, exits: "Exits") -> None:
    self.number = client.number
    self.hosted = frozenset({client.number})
    self._client = client
    self._exits = exits

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
    self._client.send(messages.WorkerReady())
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
    """Only the director knows, so None."""
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

  def connect(self) -> None:
    others = sorted(self.view.numbers - self.hosted)
    self._exits.transport.connect(others[:_MOST_PARTNERS])

  def settled(self, steps: base.StepId) -> None:
    """Starts the next attempt."""
    del steps
    self._exits.settled()

  def report(self, kind: str, **facts: Any) -> None:
    """Reports of "leave" and "slow" are always about this node."""
    if kind in ("leave", "slow"):
      del facts["node"]
    self._client.send(_REPORTS[kind](**facts))


class RemoteDirector:
  """A `cohort.FaultInjector` behind a local socket, which sends real signals.

  `address` is the name of an abstract Unix socket; `OSError` if it is not
  reachable.
  """

  def __init__(self, address: str, *, number: base.NodeId, name: str) -> None:
    self._socket = socket.socket(socket.AF_UNIX)
    self._socket.connect(f"\0{address}")
    self._decoder = frames.Decoder()
    self._is_asked_to_stop = False
    self._say({"number": number, "name": name, "pid": os.getpid()})

  def strike(self, due: faults_lib.Due) -> bool:
    self._say({"line": due.fault.line, "owner": due.owner})
    while not (answers := self._hear()):
      pass
    return bool(answers[0]["has_joined"])

  def is_asked_to_stop(self) -> bool:
    """Returns whether to save and end the run after this step; never blocks."""
    while select.select([self._socket], [], [], 0)[0]:
      self._hear()
    return self._is_asked_to_stop

  def _hear(self) -> list[Mapping[str, Any]]:
    """Receives messages; returns the answers among them; blocks."""
    data = self._socket.recv(1 << 16)
    if not data:
      raise ConnectionError("The process that injects faults has ended.")
    said = self._decoder.feed(data)
    self._is_asked_to_stop |= any("stop" in message for message in said)
    return [message for message in said if "stop" not in message]

  def _say(self, message: Mapping[str, Any]) -> None:
    self._socket.sendall(frames.encode(message))


class Exits:
  """All transfers between this process and others.

  Each attempt of a step has a number: the view, and a counter that grows
  whenever all members of the view agree that no message is in flight. Messages
  carry it, so that members need not report what they have sent.
  """

  def __init__(
      self,
      transport: transport_lib.Transport,
      progress: Callable[[], tuple[tuple[base.NodeId, ...], int]] = lambda: ((), 0),
  ) -> None:
    """`progress` returns `ring` and `num_segments` of `channel.Begun`."""
    self.transport, self._progress, self._attempt = transport, progress, 0

  def begun(self) -> channel_lib.Begun:
    """Returns this member's address, and its open waits."""
    waits = {r.node for r in self.transport.open_waits()}
    return channel_lib.Begun(self.transport.address, tuple(sorted(waits)), *self._progress())

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
