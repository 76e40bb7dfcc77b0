"""One peer of the transport: threads and sockets around the protocol.

  row      send: add to the outbox           receive: wait for the values
             |                                          ^
  writer   copy to the host, write   ===>   reader  read into fresh memory

There is a connection for each direction, made by the thread that writes to it.
So no thread reads what another one writes, which TLS forbids, and two nodes
that connect at once do not disturb each other. Another thread watches that
connection: the last value before a loss must be written again.
"""

import collections
from collections.abc import Callable, Sequence
import math
import threading
import time
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.runtime.wire import (
    endpoints,
    frame as frame_lib,
    protocol as protocol_lib,
    sockets,
)

QUEUED_BYTES = 4 << 30
_RETRACTED = "retracted"  # Channel of `Transport.retract`.
_RECEIVED = "received"  # Of how many values this end has received.
_PART_BYTES = 1 << 20  # Read before this counts as progress.
_DIAL_SECS = 5.0  # To connect and greet.
_RETRY_SECS = 0.02  # Pause after a failure, doubled after each more,
_MOST_RETRY_SECS = 0.5  # up to this.
_WARN_SECS = 5.0  # Between two lines about the same peer.


class Peer:
  """Values to and from one node; safe in any thread."""

  def __init__(
      self,
      me: base.NodeId,
      node: base.NodeId,
      *,
      run: str,
      endpoint: endpoints.Endpoint,
      queued_bytes: int,
      note: Callable[[], None],
      on_retracted: Callable[[], None],
  ) -> None:
    """See `transport.Transport`."""
    self._note, self._on_retracted = note, on_retracted
    self._me, self._node, self._run = me, node, run
    self._endpoint, self._queued_bytes = endpoint, queued_bytes
    self._outbox, self._inbox = protocol_lib.Outbox(), protocol_lib.Inbox()
    lock = threading.RLock()
    self._lock = threading.Condition(lock)
    self._writable = threading.Condition(lock)  # The writer waits for it.
    self._address: str | None = None
    self._values = collections.defaultdict[str, collections.deque[Any]](collections.deque)
    self._unsaid_bytes = 0  # Received, and not told yet.
    self._ahead = 0  # Newest attempt that the peer has greeted with.
    self._interrupted: str | None = None  # Why.
    self._removed: str | None = None
    self._is_wanted = False  # Whether to connect.
    self._writing: sockets.Wire | None = None
    self._reading: sockets.Wire | None = None  # The newest one from the peer.
    self._error: Exception | None = None  # What cannot be written.
    self._warned_secs = -_WARN_SECS
    self._start(self._write_all, "writes to")

  def _start(self, target: Callable[..., None], what: str, *args: Any) -> threading.Thread:
    name = f"{what} {logs.name_of(self._node)}"
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread

  # Calls of rows.

  @property
  def has_room(self) -> bool:
    """Whether `wait_for_room` returns at once."""
    return self._outbox.kept_bytes <= self._queued_bytes

  def wait_for_room(self) -> None:
    """Waits until the peer has received enough for another `send`.

    Its reader goes on whatever its rows do, so two peers that wait for each
    other go on. Raises as `receive`, and if a newer attempt begins.
    """
    self._wait_in_attempt(lambda: self.has_room)

  def retract(self) -> int:
    """Sends a retraction, as `send`; returns the number of values up to it."""
    with self._lock:
      self._check()
      self._add(_RETRACTED, [])
      return self._outbox.num_values

  def wait_until_received(self, count: int) -> None:
    """Waits until the peer has `count` values of this attempt; raises as above."""
    self._wait_in_attempt(lambda: self._outbox.num_received >= count)

  def send(self, channel: str, arrays: Sequence[Any]) -> None:
    """Sends a value; does not wait for arrays, sockets or the peer.

    Arrays are kept until the peer has received them: they must be neither
    changed nor donated before the next attempt or the end of the step.

    Raises:
      base.AttemptOverError: The attempt was interrupted.
      base.PeerRemovedError: The peer was removed.
    """
    for array in arrays:
      if not isinstance(array, np.ndarray):
        array.copy_to_host_async()  # The writer waits for it.
    with self._lock:
      self._check()
      self._add(channel, arrays)

  def receive(self, channel: str) -> list[np.ndarray]:
    """Returns the next value of a channel; blocks.

    Raises as `send`; also if the peer has moved to a newer attempt.
    """
    with self._lock:
      self._wait(lambda: bool(self._values.get(channel)), math.inf)
      arrays: list[np.ndarray] = self._values[channel].popleft()
      return arrays

  def wait(self, channel: str, secs: float) -> bool:
    """Waits for a value, at most `secs`; returns whether it has arrived.

    Raises as `receive`.
    """
    with self._lock:
      is_there = lambda: bool(self._values.get(channel))
      return self._wait(is_there, time.monotonic() + secs)

  def _wait(self, is_true: Callable[[], bool], until_secs: float) -> bool:
    while True:
      self._check()
      if is_true():
        return True
      # Afterwards: what came before the peer moved is still good.
      if (ahead := max(self._ahead, self._inbox.newest)) > self._inbox.attempt:
        raise base.AttemptOverError(f"Node {self._node} is in attempt {ahead} already.")
      left_secs = until_secs - time.monotonic()
      if left_secs <= 0:
        return False
      self._lock.wait(min(left_secs, threading.TIMEOUT_MAX))

  def _wait_in_attempt(self, is_true: Callable[[], bool]) -> None:
    with self._lock:
      attempt = self._outbox.attempt
      self._wait(lambda: attempt != self._outbox.attempt or is_true(), math.inf)
      if attempt != self._outbox.attempt:
        raise base.AttemptOverError(f"Attempt {attempt} is over.")

  def begin(self, attempt: int, *, interrupted: str | None = None) -> None:
    """Moves to a newer attempt, which may be interrupted from the start."""
    with self._lock:
      self._interrupted = interrupted
      if attempt > self._outbox.attempt:
        self._outbox.begin(attempt)
        self._values.clear()
        self._unsaid_bytes = 0
        for frame in self._inbox.begin(attempt):
          self._deliver(frame)
        self._lock.notify_all()

  def interrupt(self, why: str) -> None:
    """Makes sends and receives raise until the next attempt begins."""
    with self._lock:
      self._interrupted = why
      self._lock.notify_all()

  def remove(self, why: str) -> None:
    """Ends the peer; waiting and later calls raise `PeerRemovedError`."""
    with self._lock:
      self._removed = why
      self._values.clear()
      for wire in (self._writing, self._reading):
        if wire is not None:
          wire.cut()
      self._lock.notify_all()
      self._writable.notify()

  def _check(self) -> None:
    if self._removed is not None:
      raise base.PeerRemovedError(self._node, self._removed)
    if self._error is not None:
      raise self._error
    if self._interrupted is not None:
      raise base.AttemptOverError(self._interrupted)

  def set_address(self, address: str | None) -> None:
    """Sets the address at which the peer listens; None: unknown."""
    with self._lock:
      self._address = address
      self._writable.notify()

  def connect(self) -> None:
    """Connects in the background, and again whenever the connection is lost."""
    with self._lock:
      self._is_wanted = True
      self._writable.notify()

  def _add(self, channel: str, arrays: Sequence[Any]) -> None:
    """Adds a value, with the lock; the writer writes it."""
    self._outbox.add(channel, [*arrays], *frame_lib.describe(arrays))
    self.connect()

  # The connection to the peer.

  def _write_all(self) -> None:
    """Connects, and writes what is in the outbox, until the peer is removed."""
    pause_secs = _RETRY_SECS
    while True:
      with self._lock:
        while self._removed is None and not (self._is_wanted and self._address):
          self._writable.wait()
        if self._removed is not None:
          return
        address = str(self._address)
      try:
        wire = self._endpoint.dial(address, _DIAL_SECS)
      except OSError as error:
        self._warn(
            f"cannot reach {logs.name_of(self._node)} at {address}: {endpoints.explain(error)}."
        )
        was_good = False
      else:
        was_good = self._write_to(wire)
      pause_secs = _RETRY_SECS if was_good else min(2 * pause_secs, _MOST_RETRY_SECS)
      with self._lock:
        self._writable.wait_for(lambda: self._removed is not None, pause_secs)

  def _write_to(self, wire: sockets.Wire) -> bool:
    """Greets and writes until the connection is lost; returns whether it was good."""
    watcher = None
    try:
      with self._lock:
        if self._removed is not None:
          return False
        self._writing = wire
      name = f"{self._me}>{self._node} {self._run}"
      wire.write([frame_lib.encode(frame_lib.Frame(0, 0, meta=name))])
      greeting = frame_lib.read_head(wire.read_into)
      wire.set_timeout(None)
      watcher = self._start(self._watch, "watches", wire)
      with self._lock:
        self._outbox.resume(greeting.attempt, greeting.number)
        self._ahead = max(self._ahead, greeting.attempt)
        self._lock.notify_all()
      while True:
        with self._lock:
          while self._writing is wire and not self._outbox.has_unsent:
            self._writable.wait()
          if self._writing is not wire:
            return True
          frame = self._outbox.pull()
        # Waits for whatever computes the arrays, in this thread.
        wire.write(self._buffers(frame))
    except frame_lib.ProtocolError as error:
      self._warn(f"rejects {logs.name_of(self._node)}: {error}.")
    except OSError as error:
      logging.debug("Writing to %s: %s", logs.name_of(self._node), error)
    finally:
      with self._lock:
        self._writing = None
      wire.cut()
      if watcher is not None:
        watcher.join()
      wire.close()
    return watcher is not None

  def _watch(self, wire: sockets.Wire) -> None:
    wire.wait_until_lost()
    with self._lock:
      if self._writing is wire:
        self._writing = None
        wire.cut()
        self._writable.notify()

  def _buffers(self, frame: frame_lib.Frame) -> list[Any]:
    try:
      return frame_lib.buffers_of(frame)
    except Exception as error:  # JAX raises various types for a lost array.
      with self._lock:
        if frame.attempt == self._outbox.attempt:  # Else it may be donated.
          self._error = error  # For the thread that sends or receives next.
          self._lock.notify_all()
      raise OSError(f"a value cannot be sent: {error}") from error

  # The connection from the peer.

  def read(self, wire: sockets.Wire, hello: frame_lib.Frame) -> None:
    """Answers a greeting, and reads values until the connection ends."""
    try:
      with self._lock:
        if hello.meta != f"{self._node}>{self._me} {self._run}":
          raise frame_lib.ProtocolError(f"unexpected greeting {hello.meta!r}")
        if self._removed is not None:
          return
        # What the former one still brings is not counted, but sent again.
        former, self._reading = self._reading, wire
        greeting = frame_lib.Frame(self._inbox.newest, self._inbox.count)
        if former is not None:
          former.cut()
      wire.write([frame_lib.encode(greeting)])
      wire.set_timeout(None)
      while True:
        frame = frame_lib.read_head(wire.read_into)
        # Without the lock, as it may take long.
        frame = frame_lib.read_payload(frame, lambda view: self._read_into(wire, view))
        with self._lock:
          if self._reading is not wire:
            return
          for value in self._inbox.accept(frame):
            self._deliver(value)
          self._lock.notify_all()
    except frame_lib.ProtocolError as error:
      self._warn(f"rejects {logs.name_of(self._node)}: {error}.")
    except (OSError, ValueError) as error:
      logging.debug("Reading from %s: %s", logs.name_of(self._node), error)
    finally:
      with self._lock:
        if self._reading is wire:
          self._reading = None
        wire.close()

  def _read_into(self, wire: sockets.Wire, view: memoryview) -> None:
    for start in range(0, len(view), _PART_BYTES):
      wire.read_into(view[start : start + _PART_BYTES])
      self._note()

  def _deliver(self, frame: frame_lib.Frame) -> None:
    """Takes a value of this attempt, with the lock."""
    if frame.channel == _RECEIVED:
      self._outbox.forget(int(frame.payload[0]))
      return
    self._unsaid_bytes += frame.size
    if frame.channel == _RETRACTED:
      self._on_retracted()
    else:
      self._values[frame.channel].append(frame.payload)
    # 64 of these fit into what the peer may keep, so it need not wait for one.
    if frame.channel == _RETRACTED or self._unsaid_bytes > self._queued_bytes >> 6:
      self._unsaid_bytes = 0
      self._add(_RECEIVED, [np.array(frame.number + 1)])

  def _warn(self, text: str) -> None:
    """Logs a line about the peer, unless there was one just now."""
    now = time.monotonic()
    if now >= self._warned_secs + _WARN_SECS and self._removed is None:
      self._warned_secs = now
      logging.warning("%s %s", logs.name_of(self._me), text)
