"""The worker's end of the socket to its agent.

A thread reads, so that a new view is known while the worker computes or waits
for a transfer. A wait for posts ends early if a newer view lacks a member. A
process that was stopped for a while asks its agent whether it is still a member
before it believes posts.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import os
import socket
import threading
import time
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import frames
from bamboo_jax.cluster import views
from bamboo_jax.cluster.sessions import eras as eras_lib

_STALL_BEATS = 10  # So many without progress are reported.
_AWAY_BEATS = 5  # Who has missed so many may have been left out.


class Client:
  """Talks to the agent of node `number`; `adopted` is the view it works in."""

  def __init__(
      self,
      sock: socket.socket,
      *,
      number: int,
      on_lost: Callable[[views.View], Any],
      begun: Callable[[], Any],
      heartbeat_secs: float = 0.1,
  ) -> None:
    """Starts to read from a socket that is connected to the agent.

    Args:
      on_lost: Called at once, in the thread that reads, when somebody of the
        adopted view is gone, with the new view; what it returns is posted
        there as "begun". Called once with an empty view before the first.
      begun: Returns the transfers that have begun, to tell who waits for whom.
    """
    self.number = number
    self.adopted = views.EMPTY
    self._sock = sock
    self._on_lost = on_lost
    self._find_begun = begun
    self._heartbeat_secs = heartbeat_secs
    self._newest = views.EMPTY
    self._interrupt = views.EMPTY
    self._views: dict[int, views.View] = {}
    self._gathered: dict[tuple[int, str], dict[int, Any]] = {}
    self._arrived: dict[int, float] = {}
    self._eras: dict[int, eras_lib.Era] = {}
    self._facts: Any = None
    self._changed = threading.Condition()
    self._writing = threading.Lock()
    self._posted: list[tuple[int, str]] = []
    self._progress = 0
    self._is_waiting = False
    self._beat_secs = time.monotonic()
    self._is_in_doubt = self._is_in_trouble = False
    for work in (self._read, self._beat):
      threading.Thread(target=work, name="agent", daemon=True).start()

  @property
  def newest(self) -> views.View:
    """The newest view that is known, adopted or not."""
    with self._changed:
      return self._newest

  @property
  def is_interrupted(self) -> bool:
    """Whether a newer view lacks a member of the adopted one."""
    with self._changed:
      return self._is_interrupted()

  def note_progress(self) -> None:
    """Reports progress, with the next heartbeat."""
    self._progress += 1

  def send(self, kind: str, **values: Any) -> None:
    """Sends a message to the agent."""
    data = frames.encode({"kind": kind, **values})
    with self._writing:
      self._sock.sendall(data)

  def post(self, view: int, key: str, value: Any) -> None:
    """Posts a value for all members of a view; each key once."""
    with self._changed:
      self._posted.append((view, key))
    self.send("post", view=view, key=key, value=value)

  def gather(self, key: str, value: Any) -> dict[int, Any]:
    """Posts a value; returns those of all members of the adopted view.

    Raises `base.ViewChangedError` if a member is gone.
    """
    self.post(self.adopted.number, key, value)
    return self.collect(key)

  def collect(self, key: str) -> dict[int, Any]:
    """Returns the values of all members, by number; raises as `gather`."""
    entry = (self.adopted.number, key)
    with self._changed:
      self._changed.wait_for(
          lambda: entry in self._gathered or self._is_interrupted()
      )
      if entry not in self._gathered:
        raise base.ViewChangedError(self._interrupt.reason)
      self._doubt_if_away()
      self._changed.wait_for(lambda: not self._is_in_doubt)
      self.note_progress()
      return self._gathered.pop(entry)

  def wait_interrupt(self, timeout_secs: float | None) -> views.View | None:
    """Returns the next view once it lacks a member; None after the timeout.

    A timeout above 0 begins when the agent misses nobody (any more): a store
    that does not answer may keep a view waiting.
    """
    with self._waiting(), self._changed:
      while not self._changed.wait_for(self._is_interrupted, timeout_secs):
        if not (timeout_secs and self._is_in_trouble):
          return None
      return self._interrupt

  def wait_members(self, count: int) -> None:
    """Waits until the newest view has `count` members.

    Raises `base.ViewChangedError` if a member of the adopted view is gone.
    """
    with self._waiting(), self._changed:
      self._changed.wait_for(
          lambda: len(self._newest.members) >= count or self._is_interrupted()
      )
      if self._is_interrupted():
        raise base.ViewChangedError(self._interrupt.reason)

  def wait_first(self) -> views.View:
    """Returns the first view that has this node; waits for it."""
    with self._waiting(), self._changed:
      while True:
        found = sorted(v for v, key in self._gathered if key == "begun")
        for view in (self._views[number] for number in found):
          if view.numbers <= self._newest.numbers:
            return view
        self._changed.wait()

  def adopt(self, view: views.View) -> None:
    """Works in a view from now on."""
    with self._changed:
      self.adopted = view
      for entry in [e for e in self._gathered if e[0] < view.number]:
        del self._gathered[entry]
      for number in [n for n in self._views if n < view.number]:
        del self._views[number], self._arrived[number]
      self._posted = [p for p in self._posted if p[0] >= view.number]
      successor = self._find_successor()
    self.send("adopt", view=view.number)
    if successor is not None:
      self._stop(successor)

  def find_view(self, number: int) -> views.View:
    """Returns a view by its number; waits for it if it must be on its way."""
    with self._changed:
      self._changed.wait_for(lambda: number in self._views)
      return self._views[number]

  def arrived_secs(self, number: int) -> float:
    """Returns the time at which a view came, on `time.perf_counter`."""
    return self._arrived[number]

  def wait_era(self, number: int | None = None) -> eras_lib.Era:
    """Returns an era by its number, by default the newest; waits for it."""
    with self._waiting(), self._changed:
      self._changed.wait_for(
          lambda: self._eras if number is None else number in self._eras
      )
      return self._eras[max(self._eras) if number is None else number]

  def wait_facts(self) -> Any:
    """Returns the members' facts about the run; waits for them."""
    with self._waiting(), self._changed:
      self._changed.wait_for(lambda: self._facts is not None)
      return self._facts

  def _is_interrupted(self) -> bool:
    return self._interrupt.number > self.adopted.number

  @contextlib.contextmanager
  def _waiting(self) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
      yield
      return
    self._is_waiting = True
    try:
      yield
    finally:
      self._is_waiting = False
      self.note_progress()

  def _beat(self) -> None:
    last, count = -1, 0
    while True:
      with self._changed:
        self._doubt_if_away()
        self._beat_secs = time.monotonic()
      progress, is_waiting = self._progress, self._is_waiting
      last, count = progress, count + 1 if progress == last else 0
      stall = None
      if is_waiting or count >= _STALL_BEATS:
        stall = self._describe_stall(is_waiting)
      self.send("beat", progress=progress, is_waiting=is_waiting, stall=stall)
      time.sleep(self._heartbeat_secs)

  def _doubt_if_away(self) -> None:
    """Asks the agent whether this is a member, if it may have been away."""
    away_secs = time.monotonic() - self._beat_secs
    if away_secs > _AWAY_BEATS * self._heartbeat_secs and not self._is_in_doubt:
      self._is_in_doubt = True
      self.send("doubt")

  def _describe_stall(self, is_waiting: bool) -> dict[str, Any]:
    with self._changed:
      return {
          "is_waiting": is_waiting,
          "view": self.adopted.number,
          "begun": self._find_begun(),
          "posted": self._posted,
      }

  def _read(self) -> None:
    decoder = frames.Decoder()
    while data := self._sock.recv(1 << 16):
      for message in decoder.feed(data):
        self._hear(message)
    os._exit(1)  # Without an agent there is no cluster.

  def _hear(self, message: Mapping[str, Any]) -> None:
    match message["kind"]:
      case "view":
        self._see(json_lib.from_plain(views.View, message["view"]))
      case "gathered":
        values = {int(k): v for k, v in message["values"].items()}
        with self._changed:
          self._gathered[message["view"], message["key"]] = values
          self._changed.notify_all()
      case "member":
        with self._changed:
          self._is_in_doubt = False
          self._changed.notify_all()
      case "trouble":
        with self._changed:
          self._is_in_trouble = message["is_due"]
      case "era":
        era = json_lib.from_plain(eras_lib.Era, message["era"])
        with self._changed:
          self._eras[era.number] = era
          self._changed.notify_all()
      case "facts":
        with self._changed:
          self._facts = message["facts"]
          self._changed.notify_all()

  def _see(self, view: views.View) -> None:
    with self._changed:
      self._newest = view
      self._views[view.number] = view
      self._arrived[view.number] = time.perf_counter()
      is_new = not self.adopted.members
      successor = None if is_new else self._find_successor()
    if successor is not None:
      self._stop(successor)
    elif is_new and self.number in view.numbers:
      # Members may take it in now, or with a later view: see `wait_first`.
      self.post(view.number, "begun", self._on_lost(views.EMPTY))
    with self._changed:
      self._changed.notify_all()

  def _find_successor(self) -> views.View | None:
    later = [
        v for n, v in sorted(self._views.items()) if n > self.adopted.number
    ]
    found = views.find_successor(self.adopted, later)
    if found is None or found.number <= self._interrupt.number:
      return None
    return found

  def _stop(self, view: views.View) -> None:
    """Interrupts the step for a view; posts the transfers that have begun."""
    begun = self._on_lost(view)
    self.post(view.number, "begun", begun)
    with self._changed:
      self._interrupt = view
      self._changed.notify_all()
