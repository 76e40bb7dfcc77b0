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
  """Values to and from one node, and the connections that carry them.

  Attributes; `lock` guards all of them:
    outbox: Values to the peer.
    values: Values of this attempt from the peer, by channel.
    is_removed: Whether it is permanently gone, which ends the threads.
    error: Why a value cannot be sent; None otherwise.
  """

  def __init__(
      self,
      me: base.NodeId,
      node: base.NodeId,
      *,
      run: str,
      endpoint: endpoints.Endpoint,
      queued_bytes: int,
      lock: threading.RLock,
      changed: threading.Condition,
      note: Callable[[], None],
      on_retracted: Callable[[], None],
  ) -> None:
    """See `transport.Transport`; `changed` is told of all that rows wait for."""
    self._me, self._node, self._run = me, node, run
    self._endpoint, self._queued_bytes = endpoint, queued_bytes
    self._lock, self._changed = lock, changed
    self._note, self._on_retracted = note, on_retracted
    self.outbox, self._inbox = protocol_lib.Outbox(), protocol_lib.Inbox()
    self.values = collections.defaultdict[str, collections.deque[Any]](collections.deque)
    self._address: str | None = None
    self.is_removed = False
    self.error: Exception | None = None
    self._writable = threading.Condition(lock)  # The writer waits for it.
    self._unsaid_bytes = 0  # Received, and not told yet.
    self._greeted = 0  # Newest attempt that the peer has greeted with.
    self._is_wanted = False  # Whether to connect.
    self._writing: sockets.Wire | None = None
    self._reading: sockets.Wire | None = None  # The newest one from the peer.
    self._warned_secs = -_WARN_SECS
    self._start(self._write_all, "writes to")

  def _start(self, target: Callable[..., None], what: str, *args: Any) -> threading.Thread:
    name = f"{what} {logs.name_of(self._node)}"
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread

  @property
  def newest(self) -> int:
    """The newest attempt of both nodes, as far as is known here."""
    return max(self._greeted, self._inbox.newest)

  @property
  def has_room(self) -> bool:
    """Whether the peer has received enough for another value."""
    return self.outbox.kept_bytes <= self._queued_bytes

  def begin(self, attempt: int) -> None:
    """Moves to a newer attempt."""
    self.outbox.begin(attempt)
    self.values.clear()
    self._unsaid_bytes = 0
    for frame in self._inbox.begin(attempt):
      self._deliver(frame)

  def add(self, channel: str, arrays: Sequence[Any]) -> None:
    """Adds a value, which the writer writes."""
    self.outbox.add(channel, [*arrays], *frame_lib.describe(arrays))
    self.connect()

  def retract(self) -> int:
    """Adds a retraction; returns the number of values up to it."""
    self.add(_RETRACTED, [])
    return self.outbox.num_values

  def connect(self) -> None:
    """Connects in the background, and again whenever the connection is lost."""
    self._is_wanted = True
    self._writable.notify()

  def set_address(self, address: str | None) -> None:
    """Sets the address at which the peer listens; None: unknown."""
    self._address = address
    self._writable.notify()

  def remove(self) -> None:
    """Ends connections and threads."""
    self.is_removed = True
    for wire in (self._writing, self._reading):
      if wire is not None:
        wire.cut()
    self._writable.notify()

  # The connection to the peer.

  def _write_all(self) -> None:
    """Connects, and writes what is in the outbox, until the peer is removed."""
    pause_secs = _RETRY_SECS
    while True:
      with self._lock:
        while not (self.is_removed or self._is_wanted and self._address):
          self._writable.wait()
        if self.is_removed:
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
        self._writable.wait_for(lambda: self.is_removed, pause_secs)

  def _write_to(self, wire: sockets.Wire) -> bool:
    """Greets and writes until the connection is lost; returns whether it was good."""
    watcher = None
    try:
      with self._lock:
        if self.is_removed:
          return False
        self._writing = wire
      name = f"{self._me}>{self._node} {self._run}"
      wire.write([frame_lib.encode(frame_lib.Frame(0, 0, meta=name))])
      greeting = frame_lib.read_head(wire.read_into)
      wire.set_timeout(None)
      watcher = self._start(self._watch, "watches", wire)
      with self._lock:
        self.outbox.resume(greeting.attempt, greeting.number)
        self._greeted = max(self._greeted, greeting.attempt)
        self._changed.notify_all()
      while True:
        with self._lock:
          while self._writing is wire and not self.outbox.has_unsent:
            self._writable.wait()
          if self._writing is not wire:
            return True
          frame = self.outbox.pull()
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
        if frame.attempt == self.outbox.attempt:  # Else it may be donated.
          self.error = error  # For the thread that sends or receives next.
          self._changed.notify_all()
      raise OSError(f"a value cannot be sent: {error}") from error

  # The connection from the peer.

  def read(self, wire: sockets.Wire, hello: frame_lib.Frame) -> None:
    """Answers a greeting, and reads values until the connection ends."""
    try:
      with self._lock:
        if hello.meta != f"{self._node}>{self._me} {self._run}":
          raise frame_lib.ProtocolError(f"unexpected greeting {hello.meta!r}")
        if self.is_removed:
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
          self._changed.notify_all()
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
    """Takes a value of this attempt."""
    if frame.channel == _RECEIVED:
      self.outbox.forget(int(frame.payload[0]))
      return
    self._unsaid_bytes += frame.size
    if frame.channel == _RETRACTED:
      self._on_retracted()
    else:
      self.values[frame.channel].append(frame.payload)
    # 64 of these fit into what the peer may keep, so it need not wait for one.
    if frame.channel == _RETRACTED or self._unsaid_bytes > self._queued_bytes >> 6:
      self._unsaid_bytes = 0
      self.add(_RECEIVED, [np.array(frame.number + 1)])

  def _warn(self, text: str) -> None:
    """Logs a line about the peer, unless there was one just now."""
    now = time.monotonic()
    if now >= self._warned_secs + _WARN_SECS and not self.is_removed:
      self._warned_secs = now
      logging.warning("%s %s", logs.name_of(self._me), text)
