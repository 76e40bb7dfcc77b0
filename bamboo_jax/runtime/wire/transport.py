"""Values between this node and all others, each by channel and attempt.

Attempts are numbered, so a new view cuts no connection and settles no transfer:
values of an attempt that is over are dropped wherever they are. A connection
that breaks between live nodes is made again, and nothing is lost; a peer that
was removed is an error at once. The protocol is that of `protocol`. A `Peer` has
the threads and sockets of one other node:

  row      send: add to the outbox           receive: wait for the values
             |                                          ^
  writer   copy to the host, write   ===>   reader  read into fresh memory

There is a connection for each direction, made by the thread that writes to it.
So no thread reads what another one writes, which TLS forbids, and two nodes
that connect at once do not disturb each other. Another thread watches that
connection: the last value before a loss must be written again.
"""

import collections
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import math
import socket
import threading
import time
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.net import callers
from bamboo_jax.runtime.wire import endpoints, frame as frame_lib, protocol as protocol_lib

QUEUED_BYTES = 4 << 30
_RETRACTED = "retracted"  # Channel of `Transport.retract`.
_RECEIVED = "received"  # Of how many values this end has received.
_PART_BYTES = 1 << 20  # Read before this counts as progress.
_DIAL_SECS = 5.0  # To connect and greet.
_RETRY_SECS = 0.02  # Pause after a failure, doubled after each more,
_MOST_RETRY_SECS = 0.5  # up to this.
_WARN_SECS = 5.0  # Between two lines about the same peer.
_TICK_SECS = 0.02
_HELLO_SECS = 10.0
_MAX_STRANGERS = 64  # Connections whose other end has not greeted yet.


class Peer:
  """Values to and from one node, and the connections that carry them.

  Attributes; `lock` guards all of them:
    outbox: Values to the peer.
    values: Values of this attempt from the peer, by channel.
    is_removed: Whether it is permanently gone, which ends the threads.
    error: Why a value cannot be sent; None otherwise.
  """

  def __init__(self, transport: "Transport", node: base.NodeId) -> None:
    self._transport, self._node = transport, node
    self._lock, self._changed = transport.lock, transport.changed
    self.outbox, self._inbox = protocol_lib.Outbox(), protocol_lib.Inbox()
    self.values = collections.defaultdict[str, collections.deque[Any]](collections.deque)
    self._address: str | None = None
    self.is_removed = False
    self.error: Exception | None = None
    self._writable = threading.Condition(self._lock)  # The writer waits for it.
    self._unsaid_bytes = 0  # Received, and not told yet.
    self._greeted = 0  # Newest attempt that the peer has greeted with.
    self._is_wanted = False  # Whether to connect.
    self._writing: endpoints.Wire | None = None
    self._reading: endpoints.Wire | None = None  # The newest one from the peer.
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
    return self.outbox.kept_bytes <= self._transport.queued_bytes

  def begin(self, attempt: int) -> None:
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
        wire = self._transport.endpoint.dial(address, _DIAL_SECS)
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

  def _write_to(self, wire: endpoints.Wire) -> bool:
    """Greets and writes until the connection is lost; returns whether it was good."""
    watcher = None
    try:
      with self._lock:
        if self.is_removed:
          return False
        self._writing = wire
      name = f"{self._transport.me}>{self._node} {self._transport.run}"
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

  def _watch(self, wire: endpoints.Wire) -> None:
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

  def read(self, wire: endpoints.Wire, hello: frame_lib.Frame) -> None:
    """Answers a greeting, and reads values until the connection ends."""
    try:
      with self._lock:
        if hello.meta != f"{self._node}>{self._transport.me} {self._transport.run}":
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

  def _read_into(self, wire: endpoints.Wire, view: memoryview) -> None:
    for start in range(0, len(view), _PART_BYTES):
      wire.read_into(view[start : start + _PART_BYTES])
      self._transport.note()

  def _deliver(self, frame: frame_lib.Frame) -> None:
    """Takes a value of this attempt."""
    if frame.channel == _RECEIVED:
      self.outbox.forget(int(frame.payload[0]))
      return
    self._unsaid_bytes += frame.size
    if frame.channel == _RETRACTED:
      self._transport.note_retracted()
    else:
      self.values[frame.channel].append(frame.payload)
    # 64 of these fit into what the peer may keep, so it need not wait for one.
    if frame.channel == _RETRACTED or self._unsaid_bytes > self._transport.queued_bytes >> 6:
      self._unsaid_bytes = 0
      self.add(_RECEIVED, [np.array(frame.number + 1)])

  def _warn(self, text: str) -> None:
    now = time.monotonic()
    if now >= self._warned_secs + _WARN_SECS and not self.is_removed:
      self._warned_secs = now
      logging.warning("%s %s", logs.name_of(self._transport.me), text)


@dataclasses.dataclass(frozen=True)
class OpenWait:
  """A receive or send that blocks: its other node, channel, and since when."""

  node: base.NodeId
  channel: str
  since_secs: float  # On `time.monotonic`.


class Transport:
  """Sends and receives values; safe in any thread.

  Attributes:
    address: Where other nodes reach this one.
    note: Called when bytes have arrived, in any thread; may be set later.
    lock: Guards it and all peers.
    changed: Notified of all that rows wait for.
    waited_secs: The time that all threads have spent in receives and in sends
      that had to wait, without time in which the process was suspended.
  """

  def __init__(
      self,
      me: base.NodeId,
      *,
      run: str,
      endpoint: endpoints.Endpoint,
      queued_bytes: int = QUEUED_BYTES,
  ) -> None:
    """Listens at once.

    Args:
      run: Identifies the run, the same at all nodes.
      queued_bytes: Size of all values that a node has not received, above which
        no more are sent to it; the last one may have any size.
    """
    self.note: Callable[[], None] = lambda: None
    self.me, self.run, self.endpoint = me, run, endpoint
    self.queued_bytes = queued_bytes
    self.address = endpoint.address
    self.waited_secs = 0.0
    self._attempt = 0
    self._interrupted: str | None = None  # Why,
    self._until = 0  # and up to which attempt.
    self.lock = threading.RLock()  # Of all peers, too.
    self.changed = threading.Condition(self.lock)
    self._peers: dict[base.NodeId, Peer] = {}
    self._removed: dict[base.NodeId, str] = {}
    self._addresses: dict[base.NodeId, str] = {}
    self._strangers = callers.Callers(_MAX_STRANGERS)
    self._rejections = logs.Sparing()
    self._open: dict[int, OpenWait] = {}  # By thread.
    self._is_closed = self._is_retracted = False
    for target in (self._accept, self._watch_clock):
      threading.Thread(target=target, name="transport", daemon=True).start()

  # Rows.

  def begin(self, attempt: int) -> None:
    """Begins an attempt, in the thread that sends and receives.

    Values sent in an older attempt are dropped. It begins interrupted if
    `interrupt` was called for a later one, which may be just now: the caller
    cannot see that in time, and would wait for a node that has stopped.
    """
    with self.lock:
      if attempt >= self._until:
        self._interrupted = None
      if attempt > self._attempt:
        self._attempt = attempt
        for peer in self._peers.values():
          peer.begin(attempt)
        self.changed.notify_all()

  def interrupt(self, why: str, *, until: int = 0) -> None:
    """Makes all calls raise until an attempt begins, from number `until` on."""
    with self.lock:
      self._interrupted, self._until = why, max(until, self._until)
      self.changed.notify_all()

  def check(self) -> None:
    """Raises `base.AttemptOverError` if this attempt was interrupted."""
    if self._interrupted is not None:
      raise base.AttemptOverError(self._interrupted)

  def send(self, node: base.NodeId, channel: str, arrays: Sequence[Any]) -> None:
    """Sends a value to a node; does not wait for arrays or sockets.

    Waits first while the node has not received `queued_bytes`; its reader goes
    on whatever its rows do, so two nodes that wait for each other go on. Arrays
    are kept until they have been received: they must be neither changed nor
    donated before the next attempt or the end of the step.

    Raises:
      base.AttemptOverError: The attempt was interrupted, or is over.
      base.PeerRemovedError: The node was removed.
    """
    for array in arrays:
      if not isinstance(array, np.ndarray):
        array.copy_to_host_async()  # The thread that writes waits for it.
    with self.lock:
      if not self._check(node).has_room:
        self._wait(node, channel, lambda peer: peer.has_room)
      self._find(node).add(channel, arrays)

  def receive(self, node: base.NodeId, channel: str) -> Sequence[np.ndarray]:
    """Returns the next value of a node; blocks.

    Raises as `send`; also if the node has moved to a newer attempt.
    """
    with self.lock:
      self._wait(node, channel, lambda peer: bool(peer.values.get(channel)))
      arrays: Sequence[np.ndarray] = self._find(node).values[channel].popleft()
      return arrays

  def wait(self, node: base.NodeId, channel: str, secs: float) -> bool:
    """Waits for a value, at most `secs`; returns whether it has arrived.

    Raises as `receive`.
    """
    with self.lock:
      return self._wait(node, channel, lambda peer: bool(peer.values.get(channel)), secs)

  def retract(self) -> None:
    """Tells all nodes to use values of this attempt in no other; blocks.

    Returns once all know it, so they know it before values that are sent next.
    Raises as `receive`.
    """
    with self.lock:
      self.note_retracted()
      others = [*self._addresses.keys() - {self.me}]
      counts = {node: self._check(node).retract() for node in others}
      for node, count in counts.items():
        has_come = lambda peer, count=count: peer.outbox.num_received >= count
        self._wait(node, "retracted", has_come)

  def take_retracted(self) -> bool:
    """Returns whether any node has called `retract` since the last call."""
    taken, self._is_retracted = self._is_retracted, False
    return taken

  def note_retracted(self) -> None:
    self._is_retracted = True

  def _check(self, node: base.NodeId) -> Peer:
    """Returns a peer to which values can be sent, or raises."""
    self.check()
    peer = self._find(node)
    if peer.error is not None:
      raise peer.error
    return peer

  def _wait(
      self, node: base.NodeId, channel: str, is_true: Callable[[Peer], bool], secs: float = math.inf
  ) -> bool:
    """Waits for a peer, with the lock; returns False after `secs`."""
    thread, attempt, since_secs = threading.get_ident(), self._attempt, time.monotonic()
    self._open[thread] = OpenWait(node, channel, since_secs)
    try:
      while True:
        peer = self._check(node)
        if attempt != self._attempt:
          raise base.AttemptOverError(f"Attempt {attempt} is over.")
        if is_true(peer):
          return True
        # Afterwards: what came before the peer moved is still good.
        if peer.newest > attempt:
          raise base.AttemptOverError(f"Node {node} is in attempt {peer.newest} already.")
        left_secs = since_secs + secs - time.monotonic()
        if left_secs <= 0:
          return False
        self.changed.wait(min(left_secs, threading.TIMEOUT_MAX))
    finally:
      del self._open[thread]
      self.waited_secs += time.monotonic() - since_secs

  def open_waits(self) -> list[OpenWait]:
    """Returns the receives and sends that wait now."""
    return [*self._open.copy().values()]  # Other threads change the dict.

  # Nodes.

  def set_addresses(self, addresses: Mapping[base.NodeId, str]) -> None:
    """Sets the addresses of nodes; one is dialled when a value is sent to it."""
    with self.lock:
      self._addresses |= addresses
      for node, peer in self._peers.items():
        peer.set_address(self._addresses.get(node))

  def connect(self, nodes: Iterable[base.NodeId]) -> None:
    """Connects to nodes in the background, and keeps the connections."""
    with self.lock:
      for node in nodes:
        with contextlib.suppress(base.PeerRemovedError):
          self._find(node).connect()

  def remove(self, nodes: Collection[base.NodeId], why: str) -> None:
    """Drops all that is kept for nodes that are permanently gone."""
    with self.lock:
      self._removed |= dict.fromkeys(nodes, why)
      for node in nodes:
        self._addresses.pop(node, None)
        if peer := self._peers.pop(node, None):
          peer.remove()
      self.changed.notify_all()

  def keep_only(self, nodes: Collection[base.NodeId], why: str) -> None:
    """Removes all other nodes that have an address or a connection."""
    with self.lock:
      known = {*self._addresses, *self._peers}
    self.remove(known - {self.me, *nodes}, why)

  def close(self) -> None:
    self._is_closed = True  # First: `_accept` then expects an `OSError`.
    self.endpoint.close()
    self.remove([*self._peers], "this node ends")

  def _find(self, node: base.NodeId) -> Peer:
    with self.lock:
      if node in self._removed:
        raise base.PeerRemovedError(node, self._removed[node])
      if node not in self._peers:
        peer = self._peers[node] = Peer(self, node)
        peer.set_address(self._addresses.get(node))
        peer.begin(self._attempt)  # As if it had been there before.
      return self._peers[node]

  # Threads.

  def _accept(self) -> None:
    while not self._is_closed:
      try:
        connection, _ = self.endpoint.listener.accept()
      except OSError as error:
        if not self._is_closed:
          logging.warning("Cannot accept connections: %s", error)
          time.sleep(_TICK_SECS)  # Else a lasting error would spin.
        continue
      threading.Thread(target=self._greet, args=(connection,), name="greets", daemon=True).start()

  def _greet(self, connection: socket.socket) -> None:
    """Authenticates a caller, and reads its values until it is gone."""
    wire, caller = None, "a connection"
    try:
      caller = endpoints.name_caller(connection)
      with self._make_room(connection):
        connection.settimeout(_HELLO_SECS)
        wire = self.endpoint.secure(connection, is_server=True)
        hello = frame_lib.read_head(wire.read_into)
        node = base.NodeId(int(hello.meta.partition(">")[0]))
        peer = self._find(node)
    except (OSError, ValueError, base.PeerRemovedError, frame_lib.ProtocolError) as error:
      self._rejections.warn(
          *("%s at %s rejects %s: %s.", logs.name_of(self.me), self.address), *(caller, error)
      )
      (connection if wire is None else wire).close()
      return
    peer.read(wire, hello)

  @contextlib.contextmanager
  def _make_room(self, connection: socket.socket) -> Iterator[None]:
    """Counts a stranger; if there are too many, the oldest one has to go."""
    with connection.dup() as stranger:  # TLS detaches the first handle.
      self._strangers.add(stranger)
      try:
        yield
      finally:
        self._strangers.remove(stranger)

  def _watch_clock(self) -> None:
    while not self._is_closed:
      began_secs, num_open = time.monotonic(), len(self._open)
      time.sleep(_TICK_SECS)
      late_secs = time.monotonic() - began_secs - _TICK_SECS
      if late_secs > _TICK_SECS:  # It was suspended, or had no processor.
        with self.lock:
          self.waited_secs -= late_secs * num_open
