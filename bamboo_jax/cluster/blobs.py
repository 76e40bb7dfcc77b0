"""Bulk data between workers in memory, checked by a hash on arrival.

A worker offers blobs by name; another fetches one, and waits for it.
"""

from collections.abc import Callable
import hashlib
import json
import socket
import socketserver
import struct
import threading

from bamboo_jax.cluster import auth

_HEADER = struct.Struct(">Q32s")
_LINE_BYTES = 4096
_WAIT_SECS = 0.2


class DamagedError(OSError):
  """A blob that has not arrived as it was sent."""


class BlobServer:
  """Serves the blobs of this process at `address`, in threads."""

  def __init__(self, host: str, *, secret: bytes) -> None:
    self._blobs: dict[str, bytes] = {}
    self._changed = threading.Condition()
    self._secret = secret
    owner = self

    class Handler(socketserver.StreamRequestHandler):

      def handle(self) -> None:
        """Answers one fetch; a stranger gets nothing."""
        owner._serve(self)

    socketserver.ThreadingTCPServer.daemon_threads = True
    self._server = socketserver.ThreadingTCPServer((host, 0), Handler)
    self.address: tuple[str, int] = self._server.server_address
    threading.Thread(
        target=self._server.serve_forever, name="blobs", daemon=True
    ).start()

  def offer(self, name: str, blob: bytes) -> None:
    """Lets others fetch `blob`."""
    with self._changed:
      self._blobs[name] = blob
      self._changed.notify_all()

  def clear(self) -> None:
    """Withdraws all blobs."""
    with self._changed:
      self._blobs.clear()

  def _serve(self, handler: socketserver.StreamRequestHandler) -> None:
    challenge = auth.make_challenge()
    handler.wfile.write(challenge.encode() + b"\n")
    try:
      request = json.loads(handler.rfile.readline(_LINE_BYTES))
      name, answer = request["name"], request["answer"]
    except (ValueError, KeyError, TypeError):
      return
    if not auth.is_right(challenge, answer, secret=self._secret):
      return
    with self._changed:
      self._changed.wait_for(lambda: name in self._blobs, timeout=60.0)
      blob = self._blobs.get(name)
    if blob is not None:
      digest = hashlib.sha256(blob).digest()
      handler.wfile.write(_HEADER.pack(len(blob), digest))
      handler.wfile.write(blob)


def fetch(
    address: tuple[str, int],
    name: str,
    *,
    secret: bytes,
    check: Callable[[], None],
) -> bytes:
  """Returns a blob of another process; blocks until it is offered.

  Meanwhile it calls `check`, which may raise. Raises `OSError` if the other
  process is gone, `DamagedError` if the hash differs.
  """
  with socket.create_connection(tuple(address), timeout=5.0) as connection:
    connection.settimeout(_WAIT_SECS)
    challenge = _read_line(connection, check)
    request = {"name": name, "answer": auth.answer(challenge, secret=secret)}
    connection.sendall(json.dumps(request).encode() + b"\n")
    header = _read(connection, _HEADER.size, check)
    num_bytes, digest = _HEADER.unpack(header)
    blob = _read(connection, num_bytes, check)
  if hashlib.sha256(blob).digest() != digest:
    raise DamagedError(f"{name} from {address} is not as it was sent.")
  return bytes(blob)


def _read_line(connection: socket.socket, check: Callable[[], None]) -> str:
  line = bytearray()
  while not line.endswith(b"\n"):
    line += _read(connection, 1, check)
  return line.decode().strip()


def _read(
    connection: socket.socket, size: int, check: Callable[[], None]
) -> bytearray:
  buffer = bytearray(size)
  view, done = memoryview(buffer), 0
  while done < size:
    check()
    try:
      count = connection.recv_into(view[done:])
    except TimeoutError:
      continue
    if not count:
      raise ConnectionError("The connection was closed.")
    done += count
  return buffer
