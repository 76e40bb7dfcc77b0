"""Values between this node and all others, each by channel and attempt.

Attempts are numbered, so a new view cuts no connection and settles no transfer:
values of an attempt that is over are dropped wherever they are. A connection
that breaks between live nodes is made again, and nothing is lost; a peer that
was removed is an error at once. The protocol is that of `protocol`.
"""

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
from bamboo_jax.runtime.wire import endpoints, frame as frame_lib, peer as peer_lib

_TICK_SECS = 0.02
_HELLO_SECS = 10.0
_MAX_STRANGERS = 64  # Connections whose other end has not greeted yet.


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
    waited_secs: The time that all threads have spent in receives and in sends
      that had to wait, without time in which the process was suspended.
  """

  def __init__(
      self,
      me: base.NodeId,
      *,
      run: str,
      endpoint: endpoints.Endpoint,
      queued_bytes: int = peer_lib.QUEUED_BYTES,
  ) -> None:
    """Listens at once.

    Args:
      run: Identifies the run, the same at all nodes.
      queued_bytes: Size of all values that a node has not received, above which
        no more are sent to it; the last one may have any size.
    """
    self.note: Callable[[], None] = lambda: None
    self._me, self._run, self._endpoint = me, run, endpoint
    self._queued_bytes = queued_bytes
    self.address = endpoint.address
    self.waited_secs = 0.0
    self._attempt = 0
    self._interrupted: str | None = None  # Why,
    self._until = 0  # and up to which attempt.
    self._lock = threading.RLock()  # Of all peers, too.
    self._changed = threading.Condition(self._lock)
    self._peers: dict[base.NodeId, peer_lib.Peer] = {}
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
    with self._lock:
      if attempt >= self._until:
        self._interrupted = None
      if attempt > self._attempt:
        self._attempt = attempt
        for peer in self._peers.values():
          peer.begin(attempt)
        self._changed.notify_all()

  def interrupt(self, why: str, *, until: int = 0) -> None:
    """Makes all calls raise until an attempt begins, from number `until` on."""
    with self._lock:
      self._interrupted, self._until = why, max(until, self._until)
      self._changed.notify_all()

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
    with self._lock:
      if not self._check(node).has_room:
        self._wait(node, channel, lambda peer: peer.has_room)
      self._find(node).add(channel, arrays)

  def receive(self, node: base.NodeId, channel: str) -> Sequence[np.ndarray]:
    """Returns the next value of a node; blocks.

    Raises as `send`; also if the node has moved to a newer attempt.
    """
    with self._lock:
      self._wait(node, channel, lambda peer: bool(peer.values.get(channel)))
      arrays: Sequence[np.ndarray] = self._find(node).values[channel].popleft()
      return arrays

  def wait(self, node: base.NodeId, channel: str, secs: float) -> bool:
    """Waits for a value, at most `secs`; returns whether it has arrived.

    Raises as `receive`.
    """
    with self._lock:
      return self._wait(node, channel, lambda peer: bool(peer.values.get(channel)), secs)

  def retract(self) -> None:
    """Tells all nodes to use values of this attempt in no other; blocks.

    Returns once all know it, so they know it before values that are sent next.
    Raises as `receive`.
    """
    with self._lock:
      self._note_retracted()
      others = [*self._addresses.keys() - {self._me}]
      counts = {node: self._check(node).retract() for node in others}
      for node, count in counts.items():
        has_come = lambda peer, count=count: peer.outbox.num_received >= count
        self._wait(node, "retracted", has_come)

  def take_retracted(self) -> bool:
    """Returns whether any node has called `retract` since the last call."""
    taken, self._is_retracted = self._is_retracted, False
    return taken

  def _note_retracted(self) -> None:
    self._is_retracted = True

  def _check(self, node: base.NodeId) -> peer_lib.Peer:
    """Returns a peer to which values can be sent, or raises."""
    self.check()
    peer = self._find(node)
    if peer.error is not None:
      raise peer.error
    return peer

  def _wait(
      self,
      node: base.NodeId,
      channel: str,
      is_true: Callable[[peer_lib.Peer], bool],
      secs: float = math.inf,
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
        self._changed.wait(min(left_secs, threading.TIMEOUT_MAX))
    finally:
      del self._open[thread]
      self.waited_secs += time.monotonic() - since_secs

  def open_waits(self) -> list[OpenWait]:
    """Returns the receives and sends that wait now."""
    return [*self._open.copy().values()]  # Other threads change the dict.

  # Nodes.

  def set_addresses(self, addresses: Mapping[base.NodeId, str]) -> None:
    """Sets the addresses of nodes; one is dialled when a value is sent to it."""
    with self._lock:
      self._addresses |= addresses
      for node, peer in self._peers.items():
        peer.set_address(self._addresses.get(node))

  def connect(self, nodes: Iterable[base.NodeId]) -> None:
    """Connects to nodes in the background, and keeps the connections."""
    with self._lock:
      for node in nodes:
        with contextlib.suppress(base.PeerRemovedError):
          self._find(node).connect()

  def remove(self, nodes: Collection[base.NodeId], why: str) -> None:
    """Drops all that is kept for nodes that are permanently gone."""
    with self._lock:
      self._removed |= dict.fromkeys(nodes, why)
      for node in nodes:
        self._addresses.pop(node, None)
        if peer := self._peers.pop(node, None):
          peer.remove()
      self._changed.notify_all()

  def keep_only(self, nodes: Collection[base.NodeId], why: str) -> None:
    """Removes all other nodes that have an address or a connection."""
    with self._lock:
      known = {*self._addresses, *self._peers}
    self.remove(known - {self._me, *nodes}, why)

  def close(self) -> None:
    """Ends all threads and connections."""
    self._is_closed = True  # First: `_accept` then expects an `OSError`.
    self._endpoint.close()
    self.remove([*self._peers], "this node ends")

  def _find(self, node: base.NodeId) -> peer_lib.Peer:
    """Returns a peer; raises if it was removed."""
    with self._lock:
      if node in self._removed:
        raise base.PeerRemovedError(node, self._removed[node])
      if node not in self._peers:
        peer = self._peers[node] = peer_lib.Peer(
            self._me,
            node,
            run=self._run,
            endpoint=self._endpoint,
            queued_bytes=self._queued_bytes,
            lock=self._lock,
            changed=self._changed,
            note=lambda: self.note(),  # The one that is set by then.
            on_retracted=self._note_retracted,
        )
        peer.set_address(self._addresses.get(node))
        peer.begin(self._attempt)  # As if it had been there before.
      return self._peers[node]

  # Threads.

  def _accept(self) -> None:
    while not self._is_closed:
      try:
        connection, _ = self._endpoint.listener.accept()
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
        wire = self._endpoint.secure(connection, is_server=True)
        hello = frame_lib.read_head(wire.read_into)
        node = base.NodeId(int(hello.meta.partition(">")[0]))
        peer = self._find(node)
    except (OSError, ValueError, base.PeerRemovedError, frame_lib.ProtocolError) as error:
      self._rejections.warn(
          *("%s at %s rejects %s: %s.", logs.name_of(self._me), self.address), *(caller, error)
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
        with self._lock:
          self.waited_secs -= late_secs * num_open
