"""The worker's side of the protocol with its agent.

A thread reads what the agent says, so that a new view interrupts the worker while it
computes or waits for a value. A wait for posts ends early if a newer view lacks a
member. A process that was suspended asks its agent whether it is still a member
before it believes posts.
"""

from collections.abc import Callable, Generator
import functools
import os
import socket
import threading
import time
from typing import Any

from absl import logging

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.cluster import messages, views
from bamboo_jax.schedule import channel as channel_lib

_AWAY_BEATS = 5  # After as many missed beats it may be removed.

# Yields a condition and a timeout in seconds (or None), and is sent whether the
# condition held in time; then it returns its result.
Wait = Generator[tuple[Callable[[], bool], float | None], bool | None, Any]


def _blocking(wait: Callable[..., Wait]) -> Callable[..., Any]:
  """Returns a method that blocks until a wait is over.

  Meanwhile heartbeats report that the main thread waits.
  """

  @functools.wraps(wait)
  def block(self: "Client", *args: Any, **options: Any) -> Any:
    is_main = threading.current_thread() is threading.main_thread()
    waits = wait(self, *args, **options)
    return self._block(self._on_purpose(waits) if is_main else waits)

  return block


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
      block: Callable[[Wait], Any] | None = None,
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
      block: Carries out a wait, by default in threads.
    """
    self.number, self._send = number, send
    self.adopted = self.newest = views.EMPTY
    self._interrupt = views.EMPTY
    self._on_lost, self._find_begun = on_lost, begun
    self._now, self._heartbeat_secs, self._silence_secs = now, heartbeat_secs, silence_secs
    self._block = block or self._block_thread
    self._changed = threading.Condition()
    self._arrived: dict[base.ViewId, float] = {}
    self._views: dict[base.ViewId, views.View] = {}
    self._gathered: dict[tuple[base.ViewId, str], dict[base.NodeId, Any]] = {}
    self._facts: Any = None
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
        case messages.Beginning(layout):
          self._facts = layout
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
    found: dict[base.NodeId, Any] = self.collect(key)
    return found

  @_blocking
  def collect(self, key: str) -> Wait:
    """Returns the values of all members of the adopted view, by number.

    Raises `base.ViewChangedError` if a member is gone.
    """
    entry, since_secs = (self.adopted.number, key), self._now()
    yield lambda: entry in self._gathered or self.is_interrupted, None
    if entry not in self._gathered:
      raise base.ViewChangedError(self._interrupt.reason)
    self._doubt_if_away()
    if self._now() - since_secs >= self._silence_secs:
      self._doubt()  # Agent or network may have been down.
    # Reading the log may take a while, as the folder may hang.
    yield lambda: self._settled == self._doubts, None
    return self._gathered.pop(entry)

  @_blocking
  def wait_interrupt(self, timeout_secs: float | None) -> Wait:
    """Returns the next view once it lacks a member; None after the timeout.

    A timeout above 0 starts once the agent suspects no member: until then a
    view is due.
    """
    while not (yield lambda: self.is_interrupted, timeout_secs):
      if not (timeout_secs and self._is_due):
        return None
    return self._interrupt

  @_blocking
  def wait_members(self, count: int) -> Wait:
    """Waits until the newest view has `count` members, or is to stop.

    Raises `base.ViewChangedError` if a member of the adopted view is gone.
    """
    is_full = lambda: len(self.newest.members) >= count or self.newest.stops
    yield lambda: is_full() or self.is_interrupted, None
    if self.is_interrupted:
      raise base.ViewChangedError(self._interrupt.reason)

  @_blocking
  def wait_first(self) -> Wait:
    """Returns the first view with this node; waits for it."""
    yield lambda: self._find_first() is not None, None
    return self._find_first()

  @_blocking
  def find_view(self, number: base.ViewId) -> Wait:
    """Returns a view by its number; waits for it if necessary."""
    yield lambda: number in self._views, None
    return self._views[number]

  @_blocking
  def wait_facts(self) -> Wait:
    """Returns the members' facts about the run; waits for them."""
    yield lambda: self._facts is not None, None
    return self._facts

  def _on_purpose(self, wait: Wait) -> Wait:
    """Runs `wait`; meanwhile heartbeats report a worker that waits."""
    was_waiting, self._is_waiting = self._is_waiting, True
    try:
      return (yield from wait)
    finally:
      self._is_waiting = was_waiting
      self.note_progress()

  def _block_thread(self, wait: Wait) -> Any:
    with self._changed:
      held: bool | None = None
      while True:
        try:
          condition, timeout_secs = wait.send(held)
        except StopIteration as end:
          return end.value
        held = self._changed.wait_for(condition, timeout_secs)

  def _beat(self) -> None:
    self._beat_secs = self._now()
    is_waiting, step = self._is_waiting or self._waits_for_others(), base.StepId(logs.last_step())
    beat = messages.Beat(self._progress, is_waiting, step, self.adopted.number, self._doubts)
    self._send(beat)

  def _waits_for_others(self) -> bool:
    """Whether this worker needs another to go on, as far as that is a member.

    Connections within a ring may break in silence, so its last node counts as
    working: without it the others go on.
    """
    begun = self._find_begun()
    ring = begun.ring if self.newest.numbers.issuperset(begun.ring) else ()
    return bool(begun.waits_for) or bool(ring) and self.number != max(ring)

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
