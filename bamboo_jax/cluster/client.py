"""The worker's side of the protocol with its agent.

A thread reads what the agent says, so that a new view interrupts the worker while it
computes or waits for a value. A wait for posts ends early if a newer view lacks a
member. A process that was suspended asks its agent whether it is still a member
before it believes posts.
"""

from collections.abc import Callable
import os
import socket
import threading
import time
from typing import Any, TypeVar

from absl import logging

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.cluster import messages, views
from bamboo_jax.schedule import channel as channel_lib

_AWAY_BEATS = 5  # After as many missed beats it may be removed.
_T = TypeVar("_T")


class Client:
  """What the worker of node `number` knows and does; `adopted` is the view it works in.

  Attributes:
    newest: The newest view that is known, adopted or not.
    say: Says something of this node, with fields of `messages.Say`.
  """

  def __init__(
      self,
      number: base.NodeId,
      *,
      send: Callable[[Any], None],
      on_lost: Callable[[views.View], Any],
      begun: Callable[[], channel_lib.Begun],
      heartbeat_secs: float = 0.1,
      silence_secs: float = 3.0,
      now: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
  ) -> None:
    """Starts before the first message.

    Args:
      on_lost: Called at once, by who calls `hear`, with the new view when it lacks
        a member of the adopted one; its result is posted there as "begun". Called
        once with an empty view before the first.
      begun: Returns the transfers that this worker is waiting for: as long as it
        waits for others, it does not hang.
      silence_secs: After this silence others may have removed this node.
      now: Returns the time in seconds, on a clock that runs in a suspended
        machine.
    """
    self.number, self._send = number, send
    self.adopted = self.newest = views.EMPTY
    self._interrupt = views.EMPTY
    self._on_lost, self._find_begun = on_lost, begun
    self._now, self._heartbeat_secs, self._silence_secs = now, heartbeat_secs, silence_secs
    self._changed: Any = threading.Condition()
    self._arrived: dict[base.ViewId, float] = {}
    self._views: dict[base.ViewId, views.View] = {}
    self._gathered: dict[tuple[base.ViewId, str], dict[base.NodeId, Any]] = {}
    self._facts: messages.Beginning | None = None
    self._progress = 0
    self._is_waiting = self._is_due = False
    self._doubts = self._settled = 0  # How many it has had, and how many the log has settled.
    self._beat_secs = now()

  @property
  def is_interrupted(self) -> bool:
    """Whether a newer view lacks a member of the adopted one."""
    return self._interrupt.number > self.adopted.number

  def note_progress(self) -> None:
    """Reports progress, with the next heartbeat."""
    self._progress += 1

  def hear(self, message: Any) -> None:
    """Takes one of `messages.TO_WORKER`."""
    with self._changed:
      match message:
        case messages.NewView(view, is_due, doubts):
          self._is_due, self._settled = is_due, doubts
          if view.number > self.newest.number:
            self._arrived[view.number] = time.perf_counter()
            self._see(view)
        case messages.Gathered(number, key, values):
          self._gathered[number, key] = values
        case messages.Beginning():
          self._facts = message
      self._changed.notify_all()

  def post(self, view: base.ViewId, key: str, value: Any) -> None:
    """Posts a value for all members of a view; of each key the first counts, see `agent.board`.

    A joining node may post in a later view before it adopts one.
    """
    self._send(messages.Post(view, key, value))

  def say(self, **changes: Any) -> None:
    self._send(messages.Say(**changes))

  def adopt(self, view: views.View) -> None:
    """Makes `view` the one that this worker works in."""
    with self._changed:
      self.adopted = view
      for entry in [e for e in self._gathered if e[0] < view.number]:
        del self._gathered[entry]
      for number in [n for n in self._views if n < view.number]:
        del self._views[number], self._arrived[number]
      self._doubt_if_away()
      self._beat()
      self._stop_if_lost()
      self._changed.notify_all()

  def beat(self) -> None:
    """Sends a heartbeat."""
    with self._changed:
      self._doubt_if_away()
      self._beat()

  def arrived_secs(self, number: base.ViewId) -> float:
    """Returns when a view arrived, on `time.perf_counter`."""
    return self._arrived[number]

  # Waits.

  def gather(self, key: str, value: Any) -> dict[base.NodeId, Any]:
    """Posts a value; returns those of all members of the adopted view.

    Raises `base.ViewChangedError` if a member is gone.
    """
    self.post(self.adopted.number, key, value)
    return self.collect(key)

  def collect(self, key: str) -> dict[base.NodeId, Any]:
    """Returns the values of all members of the adopted view, by number.

    Raises `base.ViewChangedError` if a member is gone.
    """
    entry, since_secs = (self.adopted.number, key), self._now()
    with self._changed:
      self._wait(lambda: entry in self._gathered or self.is_interrupted)
      if entry not in self._gathered:
        raise base.ViewChangedError(self._interrupt.reason)
      self._doubt_if_away()
      if self._now() - since_secs >= self._silence_secs:
        self._doubt()  # Agent or network may have been down.
      # Reading the log may take a while, as the folder may hang.
      self._wait(lambda: self._settled == self._doubts)
      return self._gathered.pop(entry)

  def wait_interrupt(self, timeout_secs: float | None) -> views.View | None:
    """Returns the next view once it lacks a member; None after the timeout.

    A timeout above 0 starts once the agent suspects no member: until then a
    view is due.
    """
    while not self._wait(lambda: self.is_interrupted, timeout_secs):
      if not (timeout_secs and self._is_due):
        return None
    return self._interrupt

  def wait_members(self, count: int) -> None:
    """Waits until the newest view has `count` members, or is to stop.

    Raises `base.ViewChangedError` if a member of the adopted view is gone.
    """
    is_full = lambda: len(self.newest.members) >= count or self.newest.stops
    self._wait(lambda: is_full() or self.is_interrupted)
    if self.is_interrupted:
      raise base.ViewChangedError(self._interrupt.reason)

  def wait_first(self) -> views.View:
    """Returns the first view with this node; waits for it."""
    return self._wait(self._find_first)

  def find_view(self, number: base.ViewId) -> views.View:
    """Returns a view by its number; waits for it if necessary."""
    return self._wait(lambda: self._views.get(number))

  def wait_facts(self) -> dict[str, Any]:
    """Returns the members' facts about the run; waits for them."""
    return self._wait(lambda: self._facts).layout

  def _wait(self, find: Callable[[], _T | None], timeout_secs: float | None = None) -> _T:
    """Waits until `find` returns a true value, or for `timeout_secs`; returns its last value.

    Meanwhile heartbeats report that the main thread waits.
    """
    is_main = threading.current_thread() is threading.main_thread()
    with self._changed:
      self._is_waiting |= is_main
      try:
        found: _T = self._changed.wait_for(find, timeout_secs)
        return found
      finally:  # An interrupt, too, ends the wait; what comes then is work.
        if is_main:
          self._is_waiting = False
          self.note_progress()

  def _beat(self) -> None:
    self._beat_secs, begun = self._now(), self._find_begun()
    # Connections within a ring may break in silence, so its last node counts as
    # working: without it the others go on.
    ring = begun.ring if self.newest.numbers.issuperset(begun.ring) else ()
    waits = self._is_waiting or bool(begun.waits_for or ring and self.number != max(ring))
    step = base.StepId(logs.last_step())
    self._send(messages.Beat(self._progress, waits, step, self.adopted.number, self._doubts))

  def _doubt_if_away(self) -> None:
    """Asks the agent whether this is a member, after a suspension."""
    if self._now() - self._beat_secs > _AWAY_BEATS * self._heartbeat_secs:
      self._doubt()

  def _doubt(self) -> None:
    if self._settled == self._doubts:
      self._doubts += 1
      self._beat()

  def _see(self, view: views.View) -> None:
    self.newest = self._views[view.number] = view
    if self.adopted.members:
      self._stop_if_lost()
    elif self.number in view.numbers:
      # Members may admit it now or in a later view: see `wait_first`.
      self.post(view.number, messages.BEGUN, self._on_lost(views.EMPTY))

  def _find_first(self) -> views.View | None:
    found = sorted(v for v, key in self._gathered if key == messages.BEGUN)
    known = (self._views[number] for number in found)
    return next((v for v in known if v.numbers <= self.newest.numbers), None)

  def _stop_if_lost(self) -> None:
    """Interrupts the step if a newer view lacks a member."""
    known = (view for _, view in sorted(self._views.items()))
    later = (view for view in known if view.number > self.adopted.number)
    found = views.find_successor(self.adopted, later)
    if found is not None and found.number > self._interrupt.number:
      self.post(found.number, messages.BEGUN, self._on_lost(found))
      self._interrupt = found


def connect(sock: socket.socket, **given: Any) -> Client:
  """Returns the client of a worker; threads read, and send heartbeats.

  `sock` is connected to the agent, and `given` are arguments of `Client`.
  """
  writing = threading.Lock()

  def send(message: Any) -> None:
    with writing:
      sock.sendall(messages.encode(message))

  def beat() -> None:
    while True:
      client.beat()
      time.sleep(client._heartbeat_secs)

  def read() -> None:
    try:
      with sock.makefile("rb") as stream:
        while head := stream.read(4):
          client.hear(messages.TO_WORKER.decode(stream.read(messages.find_length(head))))
    except Exception:  # It must not continue without hearing its agent.
      logging.exception("The connection to the agent has failed.")
    os._exit(1)  # Without an agent there is no cluster.

  client = Client(send=send, **given)
  for work in (read, beat):
    threading.Thread(target=work, name="agent", daemon=True).start()
  return client
