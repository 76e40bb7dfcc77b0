"""One peer of the transport: threads and sockets around the protocol.

  row      send: queue                     receive: wait for the inbox
             |                                        ^
  writer   copy to the host, write   ===>   reader  read into pooled memory

A small value whose arrays are there is written by the thread that sends it, as
far as the socket takes it at once: that saves two changes of thread, half the
time of such a value. There is one writer for the peer, and one reader for each
connection.
"""

import collections
from collections.abc import Callable, Sequence
import dataclasses
import functools
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
    pool as pool_lib,
    protocol as protocol_lib,
    sockets,
    values,
)

RETRACTED = "retracted"  # Channel of `Transport.retract`.
_SMALL_BYTES = 1 << 18  # Written by the thread that sends.
_WARN_SECS = 5.0  # Between two lines about the same peer.


@dataclasses.dataclass(frozen=True)
class TransportLimits:
  """Limits of a transport.

  Attributes:
    times: Time limits of connections.
    queued_bytes: Size of all values that a peer has not acknowledged, above
      which no more are sent; the last one may have any size.
  """

  times: protocol_lib.TimeLimits = protocol_lib.TimeLimits()
  queued_bytes: int = 4 << 30


class Peer:
  """Values to and from one node; safe in any thread."""

  def __init__(
      self,
      me: base.NodeId,
      node: base.NodeId,
      *,
      run: str,
      endpoint: endpoints.Endpoint,
      limits: TransportLimits,
      note: Callable[[], None] = lambda: None,
      on_retracted: Callable[[], None] = lambda: None,
  ) -> None:
    """See `transport.Transport`."""
    self._note_bytes, self._on_retracted = note, on_retracted
    self._me, self._node = me, node
    self._endpoint, self._limits = endpoint, limits
    self._protocol = protocol_lib.TransportProtocol(
        me, node, run=run, now=time.monotonic(), times=limits.times
    )
    lock = threading.RLock()
    self._lock = threading.Condition(lock)
    self._writable = threading.Condition(lock)
    self._address: str | None = None
    self._inbox = collections.defaultdict[str, collections.deque[Any]](collections.deque)
    self._ahead = 0  # Newest attempt that the peer is known to be in.
    self._interrupted: str | None = None  # Why.
    self._removed: str | None = None
    self._awaits_acks = False
    self._is_writing = False  # A thread has taken a frame and is writing it,
    self._rest: tuple[sockets.Wire, list[Any]] | None = None  # or left this.
    self._error: Exception | None = None  # What cannot be written.
    self._warned_secs = -_WARN_SECS
    threading.Thread(
        target=self._write_all, name=f"writes to {logs.name_of(node)}", daemon=True
    ).start()

  # Calls of rows.

  @property
  def has_room(self) -> bool:
    """Whether `wait_for_room` returns at once."""
    return self._protocol.kept_bytes <= self._limits.queued_bytes

  def wait_for_room(self) -> None:
    """Waits until the peer has acknowledged enough for another `send`.

    Its reader acknowledges whatever its rows do, so two peers that wait for
    each other go on. Raises as `receive`, and if a newer attempt begins.
    """
    with self._lock:
      self._wait_in_attempt(lambda: self.has_room)

  def wait_for_acks(self) -> None:
    """Waits until the peer has acknowledged all values; raises as above."""
    with self._lock:
      self._awaits_acks = True
      try:
        self._wait_in_attempt(lambda: self._protocol.is_all_received)
      finally:
        self._awaits_acks = False

  def send(self, channel: str, arrays: Sequence[np.ndarray]) -> None:
    """Sends a value; does not wait for arrays, sockets or the peer.

    Arrays are read until they are acknowledged: they must be neither changed
    nor donated before the next attempt or the end of the step.

    Raises:
      base.AttemptOverError: The attempt was interrupted.
      base.PeerRemovedError: The peer was removed.
    """
    for array in arrays:
      if not isinstance(array, np.ndarray):
        array.copy_to_host_async()  # The writer waits for it.
    meta, size = values.describe(arrays)
    with self._lock:
      self._check()
      # An older frame, which is written first, may wait for its arrays.
      is_next = not self._protocol.has_queued
      self._do(self._protocol.send(channel, arrays, size, meta))
      is_small = size <= _SMALL_BYTES and all(map(_is_ready, arrays))
      # A rest must be written first, by the writer.
      is_at_once = is_next and is_small and self._rest is None
      taken = self._take() if is_at_once else None
    if taken is not None:
      self._write_at_once(*taken)

  def receive(self, channel: str) -> list[np.ndarray]:
    """Returns the next value of a channel; blocks.

    Raises as `send`; also if the peer has moved to a newer attempt.
    """
    with self._lock:
      self._wait(lambda: bool(self._inbox.get(channel)), math.inf)
      return self._inbox[channel].popleft()

  def wait(self, channel: str, secs: float) -> bool:
    """Waits for a value, at most `secs`; returns whether it has arrived.

    Raises as `receive`.
    """
    with self._lock:
      is_there = lambda: bool(self._inbox.get(channel))
      return self._wait(is_there, time.monotonic() + secs)

  def _wait(self, is_true: Callable[[], bool], until_secs: float) -> bool:
    while True:
      self._check()
      if is_true():
        return True
      # Afterwards: what came before the peer moved is still good.
      if self._ahead > self._protocol.attempt:
        raise base.AttemptOverError(f"Node {self._node} is in attempt {self._ahead} already.")
      left_secs = until_secs - time.monotonic()
      if left_secs <= 0:
        return False
      self._lock.wait(min(left_secs, threading.TIMEOUT_MAX))

  def _wait_in_attempt(self, is_true: Callable[[], bool]) -> None:
    attempt = self._protocol.attempt
    self._wait(is_true, math.inf)
    if attempt != self._protocol.attempt:
      raise base.AttemptOverError(f"Attempt {attempt} is over.")

  def begin(self, attempt: int, *, interrupted: str | None = None) -> None:
    """Moves to a newer attempt, which may be interrupted from the start."""
    with self._lock:
      self._interrupted = interrupted
      if attempt > self._protocol.attempt:
        self._inbox.clear()  # Before `advance`, which delivers early values.
        self._do(self._protocol.advance(attempt))
        self._lock.notify_all()

  def interrupt(self, why: str) -> None:
    """Makes sends and receives raise until the next attempt begins."""
    with self._lock:
      self._interrupted = why
      self._lock.notify_all()

  def remove(self, why: str) -> None:
    """Ends the peer; waiting and later calls raise `PeerRemovedError`."""
    with self._lock:
      if self._removed is None:
        self._removed = why
        self._inbox.clear()
        if self._protocol.connection is not None:
          self._protocol.connection.close()
        self._lock.notify_all()
        self._writable.notify_all()

  def _check(self) -> None:
    if self._removed is not None:
      raise base.PeerRemovedError(self._node, self._removed)
    if self._error is not None:
      raise self._error
    if self._interrupted is not None:
      raise base.AttemptOverError(self._interrupted)

  # Calls of the transport.

  def set_address(self, address: str | None) -> None:
    """Sets the address at which the peer listens; None: unknown."""
    self._address = address

  def tick(self) -> None:
    """Handles timeouts; call it ten times per `TimeLimits.dial_secs`."""
    with self._lock:
      if self._removed is None:
        self._do(self._protocol.tick(time.monotonic()))

  def read(self, wire: sockets.Wire, first: frame_lib.Frame | None = None) -> None:
    """Reads frames until the connection ends; the first may be read already."""
    pool = pool_lib.Pool()
    try:
      if first is not None:
        self._hear(wire, first)
      while self._removed is None:
        frame = read_header(wire)
        if frame.kind is frame_lib.Kind.DATA:
          fill = functools.partial(wire.read_into, note=functools.partial(self._note, wire))
          # Without the lock, as it may take long.
          payload = values.read(frame.meta, pool, fill)
          frame = dataclasses.replace(frame, payload=payload)
        self._hear(wire, frame)
    except frame_lib.ProtocolError as error:
      self._warn(f"rejects {logs.name_of(self._node)}: {error}.")
    except (OSError, ValueError) as error:
      logging.debug("Connection to %s: %s", logs.name_of(self._node), error)
    self._close(wire)

  def _note(self, wire: sockets.Wire) -> None:
    self._note_bytes()
    # Without the lock: it only sets a time.
    self._protocol.heard(wire, time.monotonic())

  def _hear(self, wire: sockets.Wire, frame: frame_lib.Frame) -> None:
    with self._lock:
      if self._removed is None:
        had_room = self.has_room
        self._do(self._protocol.receive(wire, frame, time.monotonic()))
        if self._awaits_acks or self.has_room and not had_room:
          self._lock.notify_all()

  def _do(self, actions: Sequence[protocol_lib.Action]) -> None:
    """Carries out actions, with the lock."""
    for action in actions:
      match action:
        case protocol_lib.Deliver(frame=frame) if frame.channel == RETRACTED:
          self._on_retracted()
        case protocol_lib.Deliver(frame=frame):
          self._inbox[frame.channel].append(frame.payload)
          self._lock.notify_all()
        case protocol_lib.Pull():
          self._writable.notify()  # Only the writer waits for it.
        case protocol_lib.Ahead(attempt=attempt):
          self._ahead = max(attempt, self._ahead)
          self._lock.notify_all()
        case protocol_lib.Write(connection=wire, frame=frame):
          # Small, and nothing was written to this connection before.
          try:
            wire.write([frame_lib.encode(frame)])
          except OSError as error:
            logging.debug("Greeting %s: %s", logs.name_of(self._node), error)
            self._protocol.closed(wire, time.monotonic())
        case protocol_lib.Close(connection=wire):
          wire.close()
        case protocol_lib.Dial():
          threading.Thread(
              target=self._dial, name=f"dials {logs.name_of(self._node)}", daemon=True
          ).start()

  def _dial(self) -> None:
    wire, limit_secs = None, self._limits.times.dial_secs
    if self._address is not None:
      try:
        wire = self._endpoint.dial(self._address, limit_secs)
      except OSError as error:
        self._warn(
            f"cannot reach {logs.name_of(self._node)} at {self._address}: "
            f"{endpoints.explain(error)}."
        )
    with self._lock:
      now = time.monotonic()
      if wire is None:
        return self._protocol.dial_failed(now)
      self._do(self._protocol.opened(wire, now))
    self.read(wire)  # This thread becomes the reader.

  # Writing.

  def _write_all(self) -> None:
    """Writes what is queued, until the peer is removed."""
    while self._removed is None:
      with self._lock:
        while (taken := self._take()) is None and self._removed is None:
          self._writable.wait()
      if taken is not None:
        self._write(*taken)

  def _take(self) -> tuple[sockets.Wire, Any] | None:
    """Removes and returns the next data to write; the caller holds the lock."""
    if self._is_writing:  # Frames must not interleave.
      return None
    taken, self._rest = self._rest, None
    if taken is None:
      wire = self._protocol.connection
      if wire is not None:
        frame = self._protocol.pull(wire, time.monotonic())
        taken = None if frame is None else (wire, frame)
    self._is_writing = taken is not None
    return taken

  def _write(self, wire: sockets.Wire, frame: Any) -> None:
    """Writes a frame, or buffers that remain of one."""
    try:
      # Waits for whatever computes the arrays, in this thread.
      is_rest = isinstance(frame, list)
      wire.write(frame if is_rest else values.buffers_of(frame))
    except OSError as error:
      logging.debug("Writing to %s: %s", logs.name_of(self._node), error)
      self._close(wire)
    except Exception as error:  # JAX raises various types for a lost array.
      with self._lock:
        self._error = error  # For the thread that sends or receives next.
        self._lock.notify_all()
    with self._lock:
      self._is_writing = False

  def _write_at_once(self, wire: sockets.Wire, frame: frame_lib.Frame) -> None:
    """Writes what the socket takes without blocking; the writer the rest."""
    rest: list[Any] = []
    try:
      rest = wire.write_some(values.buffers_of(frame))
    except OSError as error:
      logging.debug("Writing to %s: %s", logs.name_of(self._node), error)
      self._close(wire)
    finally:
      with self._lock:
        self._is_writing = False
        self._rest = (wire, rest) if rest else None
        if rest or self._protocol.has_more:
          self._writable.notify()

  def _close(self, wire: sockets.Wire) -> None:
    wire.close()
    with self._lock:
      self._protocol.closed(wire, time.monotonic())

  def _warn(self, text: str) -> None:
    """Logs a line about the peer, unless there was one just now."""
    now = time.monotonic()
    if now >= self._warned_secs + _WARN_SECS and self._removed is None:
      self._warned_secs = now
      logging.warning("%s %s", logs.name_of(self._me), text)


def read_header(wire: sockets.Wire) -> frame_lib.Frame:
  """Returns the next frame, without its payload; blocks."""
  ignore = lambda: None
  header = memoryview(bytearray(frame_lib.HEADER.size))
  wire.read_into(header, ignore)
  frame, length = frame_lib.decode_header(header)
  text = memoryview(bytearray(length))
  wire.read_into(text, ignore)
  return frame_lib.decode_text(frame, text)


def _is_ready(array: Any) -> bool:
  return isinstance(array, np.ndarray) or array.is_ready()
