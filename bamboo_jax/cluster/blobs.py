"""Bulk data between workers in memory, checked by a hash on arrival.

A worker offers blobs by name; another fetches one, and waits for it.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import hashlib
import json
import socket
import socketserver
import ssl
import struct
import threading
from typing import Any

from absl import logging

from bamboo_jax.cluster import addresses
from bamboo_jax.cluster import identity as identity_lib

_HEADER = struct.Struct(">Q32s")
_LINE_BYTES = 1 << 17  # An address is named after all nodes that connect.
_WAIT_SECS = 0.2
_HELLO_SECS = 10.0
_OFFER_SECS = 60.0
_SEND_SECS = 60.0  # For a part.
_PART_BYTES = 1 << 20
_MAX_STRANGERS = 256


class DamagedError(OSError):
  """A blob that has not arrived as it was sent."""


class Peers:
  """The processes of a cluster: serves blobs at `address`, in threads.

  If too many have not said who they are, those who have taken longest make
  room.

  Attributes:
    addresses: Where the others serve theirs, by the numbers of their nodes.
  """

  def __init__(self, host: str, identity: identity_lib.Identity) -> None:
    self.addresses: dict[int, tuple[str, int]] = {}
    self._blobs: dict[str, bytes] = {}
    self._changed = threading.Condition()
    self._identity = identity
    self._lock = threading.Lock()
    self._strangers: dict[ssl.SSLSocket, None] = {}  # The oldest first.
    socketserver.ThreadingTCPServer.daemon_threads = True
    socketserver.ThreadingTCPServer.request_queue_size = 512
    family, address = addresses.find(host, 0)
    socketserver.ThreadingTCPServer.address_family = family
    self._server = socketserver.ThreadingTCPServer(address, self._answer)
    self.address: tuple[str, int] = self._server.server_address[:2]
    threading.Thread(
        target=self._server.serve_forever, name="blobs", daemon=True
    ).start()

  def offer(self, name: str, blob: bytes) -> None:
    """Lets others fetch `blob`."""
    with self._changed:
      self._blobs[name] = blob
      self._changed.notify_all()

  def clear(self, prefix: str) -> None:
    """Withdraws all blobs whose name begins with `prefix`."""
    with self._changed:
      for name in [name for name in self._blobs if name.startswith(prefix)]:
        del self._blobs[name]

  def fetch(
      self,
      node: int,
      name: str,
      check: Callable[[], None],
      note: Callable[[], None] = lambda: None,
  ) -> bytes:
    """Returns a blob of the process of a node; see `fetch`."""
    if node not in self.addresses:
      raise ConnectionError(f"Nobody has said yet where node {node} is.")
    address = self.addresses[node]
    identity = self._identity
    return fetch(address, name, identity=identity, check=check, note=note)

  def _answer(self, plain: socket.socket, address: Any, server: Any) -> None:
    """Answers one fetch; a stranger gets nothing."""
    del server
    try:
      self._serve(plain)
    except (OSError, ValueError, KeyError, TypeError) as error:
      logging.warning("Refused %s: %s", address, error)

  def _serve(self, plain: socket.socket) -> None:
    plain.settimeout(_HELLO_SECS)
    with self._identity.server.wrap_socket(
        plain, server_side=True, do_handshake_on_connect=False
    ) as connection:
      with self._make_room(connection):
        connection.do_handshake()
      self._identity.check(connection, "worker")
      with connection.makefile("rb") as file:
        name = json.loads(file.readline(_LINE_BYTES))["name"]
      with self._changed:
        self._changed.wait_for(lambda: name in self._blobs, timeout=_OFFER_SECS)
        blob = self._blobs.get(name)
      if blob is not None:
        digest = hashlib.sha256(blob).digest()
        connection.settimeout(_SEND_SECS)
        connection.sendall(_HEADER.pack(len(blob), digest))
        for start in range(0, len(blob), _PART_BYTES):
          connection.sendall(memoryview(blob)[start : start + _PART_BYTES])

  @contextlib.contextmanager
  def _make_room(self, stranger: ssl.SSLSocket) -> Iterator[None]:
    with self._lock:
      self._strangers[stranger] = None
      if len(self._strangers) > _MAX_STRANGERS:
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        with contextlib.suppress(OSError):  # It has just gone.
          # Not that of TLS, which its thread may be about to use.
          socket.socket.shutdown(oldest, socket.SHUT_RDWR)
    try:
      yield
    finally:
      with self._lock:
        self._strangers.pop(stranger, None)


def fetch(
    address: tuple[str, int],
    name: str,
    *,
    identity: identity_lib.Identity,
    check: Callable[[], None],
    note: Callable[[], None] = lambda: None,
) -> bytes:
  """Returns a blob of another process; blocks until it is offered.

  Meanwhile it calls `check`, which may raise, and `note` whenever a part of it
  has come. Raises `OSError` if the other process is gone, or has not offered it
  within a minute, `DamagedError` if the hash differs.
  """
  with socket.create_connection(tuple(address), timeout=5.0) as plain:
    plain.settimeout(_WAIT_SECS)
    with identity.client.wrap_socket(
        plain, do_handshake_on_connect=False
    ) as connection:
      _wait(connection.do_handshake, check)
      identity.check(connection, "worker")
      connection.sendall(json.dumps({"name": name}).encode() + b"\n")
      header = _read(connection, _HEADER.size, check, note)
      num_bytes, digest = _HEADER.unpack(header)
      blob = _read(connection, num_bytes, check, note)
  if hashlib.sha256(blob).digest() != digest:
    raise DamagedError(f"{name} from {address} is not as it was sent.")
  return bytes(blob)


def _read(
    connection: ssl.SSLSocket,
    size: int,
    check: Callable[[], None],
    note: Callable[[], None],
) -> bytearray:
  buffer = bytearray(size)
  view, done = memoryview(buffer), 0
  while done < size:
    read = functools.partial(connection.recv_into, view[done:])
    count = _wait(read, check)
    if not count:
      raise ConnectionError("The connection was closed.")
    done += count
    note()
  return buffer


def _wait(act: Callable[[], int | None], check: Callable[[], None]) -> int:
  """Returns what a call returns that times out now and then."""
  while True:
    check()
    try:
      return act() or 0
    except TimeoutError:
      continue
