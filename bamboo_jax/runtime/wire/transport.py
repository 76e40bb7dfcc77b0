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
that connect at once do not disturb each other. While it has nothing to write, it
watches that connection: the last value before a loss must be written again.
"""

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import contextlib
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
from bamboo_jax.runtime.wire import endpoints, protocol as protocol_lib

QUEUED_BYTES = 4 << 30
_RETRACTED = "retracted"  # Channel of `Transport.retract`.
_RECEIVED = "received"  # Of how many values this end has received.
_PART_BYTES = 1 << 20  # Read before this counts as progress.
_DIAL_SECS = 5.0  # To connect and greet.
_RETRY_SECS = 0.02  # Pause after a failure, doubled after each more,
_MOST_RETRY_SECS = 0.5  # up to this.
_WARN_SECS = 5.0  # Between two lines about the same peer.
_WATCH_SECS = 0.1  # Between two looks whether a connection on which nothing is sent is lost.
_TICK_SECS = 0.02
_HELLO_SECS = 10.0
_MAX_STRANGERS = 64  # Connections whose other end has not greeted yet.


class Peer:
  """Values to and from one node, and the connections that carry them.

  The lock of the transport guards all attributes:
    outbox: Values to the peer.
    inbox: What has come from it.
    values: Values of this attempt from the peer, by channel.
    address: Where the peer listens; None: unknown.
    is_wanted: Whether to connect, and again whenever the connection is lost.
    is_removed: Whether it is permanently gone, which ends the threads.
    greeted: Newest attempt that the peer has greeted with.
    error: Why a value cannot be sent; None otherwise.
    changed: Notified of what the thread that writes waits for.
  """

  def __init__(self, transport: "Transport", node: base.NodeId, address: str | None) -> None:
    self._transport, self._node = transport, node
    self._lock, self.address = transport.lock, address
    self.outbox, self.inbox = protocol_lib.Outbox(), protocol_lib.Inbox()
    self.values = collections.defaultdict[str, collections.deque[Any]](collections.deque)
    self.is_wanted = self.is_removed = False
    self.error: Exception | None = None
    self.changed = threading.Condition(self._lock)
    self.greeted = self._unsaid_bytes = 0  # The latter: received, and not told yet.
    self._pause_secs = _RETRY_SECS
    self._writing: endpoints.Wire | None = None
    self._reading: endpoints.Wire | None = None  # The newest one from the peer.
    self._warnings = logs.Sparing(num_first=1, every_secs=_WARN_SECS)
    name = f"writes to {logs.name_of(node)}"
    threading.Thread(target=self._write_all, name=name, daemon=True).start()

  def begin(self, attempt: int) -> None:
    self.outbox.begin(attempt)
    self.values.clear()
    self._unsaid_bytes = 0
    for frame in self.inbox.begin(attempt):
      self._deliver(frame)

  def add(self, channel: str, arrays: Sequence[Any]) -> int:
    """Adds a value, which is then written; returns how many there are."""
    self.outbox.add(channel, arrays)
    self.is_wanted = True
    self.changed.notify()
    return self.outbox.num_values

  def remove(self) -> None:
    self.is_removed = True
    for wire in (self._writing, self._reading):
      if wire is not None:
        wire.cut()
    self.changed.notify()

  # The connection to the peer.

  def _write_all(self) -> None:
    """Connects, and writes what is in the outbox, until the peer is removed."""
    while True:
      with self._lock:
        self.changed.wait_for(lambda: self.is_removed or self.is_wanted and self.address)
        if self.is_removed:
          return
        address = str(self.address)
      try:
        wire = self._transport.endpoint.dial(address, _DIAL_SECS)
      except OSError as error:
        self._warn(
            f"cannot reach {logs.name_of(self._node)} at {address}: {endpoints.explain(error)}."
        )
      else:
        self._write_to(wire)
      with self._lock:
        self.changed.wait_for(lambda: self.is_removed, self._pause_secs)
        self._pause_secs = min(2 * self._pause_secs, _MOST_RETRY_SECS)

  def _write_to(self, wire: endpoints.Wire) -> None:
    """Greets and writes until the connection is lost."""
    try:
      with self._lock:
        if self.is_removed:
          return
        self._writing = wire
      name = f"{self._transport.me}>{self._node} {self._transport.run}"
      wire.write(protocol_lib.buffers_of(protocol_lib.Frame(0, 0, meta=name)))
      greeting = protocol_lib.read_head(wire.read_into)
      wire.set_timeout(None)
      with self._lock:
        self._pause_secs = _RETRY_SECS
        self.outbox.resume(greeting.attempt, greeting.number)
        self.greeted = max(self.greeted, greeting.attempt)
        self._transport.changed.notify_all()
      while True:
        with self._lock:
          while not self.outbox.has_unsent:
            if wire.is_lost():
              return
            self.changed.wait(_WATCH_SECS)
          frame = self.outbox.pull()
        # Waits for whatever computes the arrays, in this thread.
        wire.write(self._buffers(frame))
    except (protocol_lib.ProtocolError, OSError) as error:
      self._note("Writing to", error)
    finally:
      with self._lock:
        self._writing = None
      wire.close()

  def _buffers(self, frame: protocol_lib.Frame) -> list[Any]:
    try:
      return protocol_lib.buffers_of(frame)
    except Exception as error:  # JAX raises various types for a lost array.
      with self._lock:
        if frame.attempt == self.outbox.attempt:  # Else it may be donated.
          self.error = error  # For the thread that sends or receives next.
          self._transport.changed.notify_all()
      raise OSError(f"a value cannot be sent: {error}") from error

  # The connection from the peer.

  def read(self, wire: endpoints.Wire, hello: protocol_lib.Frame) -> None:
    """Answers a greeting, and reads values until the connection ends."""
    try:
      with self._lock:
        if hello.meta != f"{self._node}>{self._transport.me} {self._transport.run}":
          raise protocol_lib.ProtocolError(f"unexpected greeting {hello.meta!r}")
        if self.is_removed:
          return
        # What the former one still brings is not counted, but sent again.
        former, self._reading = self._reading, wire
        greeting = protocol_lib.Frame(self.inbox.newest, self.inbox.count)
        if former is not None:
          former.cut()
      wire.write(protocol_lib.buffers_of(greeting))
      wire.set_timeout(None)
      while True:
        frame = protocol_lib.read_head(wire.read_into)
        # Without the lock, as it may take long.
        frame = protocol_lib.read_payload(frame, lambda view: self._read_into(wire, view))
        with self._lock:
          if self._reading is not wire:
            return
          for value in self.inbox.accept(frame):
            self._deliver(value)
          self._transport.changed.notify_all()
    except (protocol_lib.ProtocolError, OSError, ValueError) as error:
      self._note("Reading from", error)
    finally:
      with self._lock:
        if self._reading is wire:
          self._reading = None
        wire.close()

  def _read_into(self, wire: endpoints.Wire, view: memoryview) -> None:
    for start in range(0, len(view), _PART_BYTES):
      wire.read_into(view[start : start + _PART_BYTES])
      self._transport.note()

  def _deliver(self, frame: protocol_lib.Frame) -> None:
    """Takes a value of this attempt."""
    if frame.channel == _RECEIVED:
      self.outbox.forget(int(frame.payload[0]))
      return
    self._unsaid_bytes += frame.size
    if frame.channel == _RETRACTED:
      self._transport.is_retracted = True
    else:
      self.values[frame.channel].append(frame.payload)
    # 64 of these fit into what the peer may keep, so it need not wait for one.
    if frame.channel == _RETRACTED or self._unsaid_bytes > self._transport.queued_bytes >> 6:
      self._unsaid_bytes = 0
      self.add(_RECEIVED, [np.array(frame.number + 1)])

  def _note(self, what: str, error: Exception) -> None:
    """Notes why a connection has ended."""
    name = logs.name_of(self._node)
    if isinstance(error, protocol_lib.ProtocolError):
      self._warn(f"rejects {name}: {error}.")
    else:
      logging.debug("%s %s: %s", what, name, error)

  def _warn(self, text: str) -> None:
    if not self.is_removed:
      self._warnings.warn("%s %s", logs.name_of(self._transport.me), text)


class Transport:
  """Sends and receives values; safe in any thread.

  Attributes:
    address: Where other nodes reach this one.
    note: Called when bytes have arrived, in any thread; may be set later.
    lock: Guards it and all peers.
    changed: Notified of all that rows wait for.
    waited_secs: The time that all threads have spent in receives and in sends
      that had to wait, without time in which the process was suspended.
    is_retracted: Whether any node has called `retract`, see `take_retracted`.
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
    self._open: dict[int, base.NodeId] = {}  # By thread, the node that it waits for.
    self._is_closed = self.is_retracted = False
    threading.Thread(target=self._accept, name="transport", daemon=True).start()

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
      self._wait(node, lambda peer: peer.outbox.kept_bytes <= self.queued_bytes)
      self._find(node).add(channel, arrays)

  def receive(self, node: base.NodeId, channel: str) -> Sequence[np.ndarray]:
    """Returns the next value of a node; blocks.

    Raises as `send`; also if the node has moved to a newer attempt.
    """
    with self.lock:
      self.wait(node, channel)
      arrays: Sequence[np.ndarray] = self._find(node).values[channel].popleft()
      return arrays

  def wait(self, node: base.NodeId, channel: str, secs: float = math.inf) -> bool:
    """Waits for a value, at most `secs`; returns whether it has arrived.

    Raises as `receive`.
    """
    return self._wait(node, lambda peer: bool(peer.values.get(channel)), secs)

  def retract(self) -> None:
    """Tells all nodes to use values of this attempt in no other; blocks.

    Returns once all know it, so they know it before values that are sent next.
    Raises as `receive`.
    """
    with self.lock:
      self.is_retracted = True
      others = [*self._addresses.keys() - {self.me}]
      counts = {node: self._check(node).add(_RETRACTED, []) for node in others}
      for node, count in counts.items():
        has_come = lambda peer, count=count: peer.outbox.num_received >= count
        self._wait(node, has_come)

  def take_retracted(self) -> bool:
    """Returns whether any node has called `retract` since the last call."""
    taken, self.is_retracted = self.is_retracted, False
    return taken

  def _check(self, node: base.NodeId) -> Peer:
    """Returns a peer to which values can be sent, or raises."""
    self.check()
    peer = self._find(node)
    if peer.error is not None:
      raise peer.error
    return peer

  def _wait(
      self, node: base.NodeId, is_true: Callable[[Peer], bool], secs: float = math.inf
  ) -> bool:
    """Waits for a peer; returns False after `secs`."""
    with self.lock:
      thread, attempt, until_secs = threading.get_ident(), self._attempt, time.monotonic() + secs
      try:
        while True:
          peer = self._check(node)
          if attempt != self._attempt:
            raise base.AttemptOverError(f"Attempt {attempt} is over.")
          if is_true(peer):
            return True
          # Afterwards: what came before the peer moved is still good.
          if (newest := max(peer.greeted, peer.inbox.newest)) > attempt:
            raise base.AttemptOverError(f"Node {node} is in attempt {newest} already.")
          began_secs = time.monotonic()
          if began_secs >= until_secs:
            return False
          self._open[thread] = node  # Not for a mere look.
          self.changed.wait(min(until_secs - began_secs, _TICK_SECS))
          # At most that: if it took longer, the process was suspended, or had no processor.
          self.waited_secs += min(time.monotonic() - began_secs, 2 * _TICK_SECS)
      finally:
        self._open.pop(thread, None)

  def open_waits(self) -> list[base.NodeId]:
    """Returns the nodes that receives and sends wait for now."""
    return [*self._open.copy().values()]  # Other threads change the dict.

  # Nodes.

  def set_addresses(self, addresses: Mapping[base.NodeId, str]) -> None:
    """Sets the addresses of nodes; one is dialled when a value is sent to it."""
    with self.lock:
      self._addresses |= addresses
      for node, peer in self._peers.items():
        peer.address = self._addresses.get(node)
        peer.changed.notify()

  def connect(self, nodes: Iterable[base.NodeId]) -> None:
    """Connects to nodes in the background, and keeps the connections."""
    with self.lock:
      for node in nodes:
        with contextlib.suppress(base.PeerRemovedError):
          peer = self._find(node)
          peer.is_wanted = True
          peer.changed.notify()

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
        self._peers[node] = Peer(self, node, self._addresses.get(node))
        self._peers[node].begin(self._attempt)  # As if it had been there before.
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
      # A stranger is counted; if there are too many, the oldest one has to go.
      with connection.dup() as stranger:  # TLS detaches the first handle.
        self._strangers.add(stranger)
        try:
          connection.settimeout(_HELLO_SECS)
          wire = self.endpoint.secure(connection, is_server=True)
          hello = protocol_lib.read_head(wire.read_into)
        finally:
          self._strangers.remove(stranger)
      peer = self._find(base.NodeId(int(hello.meta.partition(">")[0])))
    except (OSError, ValueError, base.PeerRemovedError, protocol_lib.ProtocolError) as error:
      self._rejections.warn(
          *("%s at %s rejects %s: %s.", logs.name_of(self.me), self.address), *(caller, error)
      )
      (connection if wire is None else wire).close()
      return
    peer.read(wire, hello)
