"""Connected sockets, plain or TLS, that one thread reads and another writes."""

from collections.abc import Callable, Sequence
import contextlib
import select
import socket
import ssl
import threading
from typing import Any, Protocol

_PART_BYTES = 1 << 20  # Read before the peer counts as heard again.
# Of TLS, while a thread holds the connection: how long the other may wait.
_TURN_BYTES = 1 << 18
_BUFFER_BYTES = 1 << 22
_MOST_VIEWS = 64  # Of one system call.
_POLL_MS = 1000

Buffer = Any  # Bytes, a view of some, or an array of numpy.


class Wire(Protocol):
  """A connection; all methods raise `OSError` once it is gone."""

  def write(self, buffers: Sequence[Buffer]) -> None:
    """Writes all bytes; blocks."""

  def write_some(self, buffers: Sequence[Buffer]) -> list[memoryview]:
    """Writes what the socket takes at once; returns the rest."""

  def read_into(self, view: memoryview, note: Callable[[], None]) -> None:
    """Fills `view`; blocks, and calls `note` when a part has arrived."""

  def close(self) -> None:
    """Closes the connection; threads that read or write get an `OSError`."""


class PlainWire:
  """A Unix socket, or TCP without encryption."""

  def __init__(self, connection: socket.socket) -> None:
    self._socket = connection
    connection.settimeout(None)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
      connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)

  def write(self, buffers: Sequence[Buffer]) -> None:
    """See `Wire`."""
    views = _views(buffers)
    while views:
      _skip(views, self._socket.sendmsg(views[:_MOST_VIEWS]))

  def write_some(self, buffers: Sequence[Buffer]) -> list[memoryview]:
    """See `Wire`."""
    views = _views(buffers)
    with contextlib.suppress(BlockingIOError):
      flags = socket.MSG_DONTWAIT
      _skip(views, self._socket.sendmsg(views[:_MOST_VIEWS], [], flags))
    return views

  def read_into(self, view: memoryview, note: Callable[[], None]) -> None:
    """See `Wire`."""
    done = 0
    while done < len(view):
      part = view[done : done + _PART_BYTES]
      size = self._socket.recv_into(part, len(part), socket.MSG_WAITALL)
      if not size:
        raise ConnectionError("closed by the other end")
      done += size
      note()

  def close(self) -> None:
    """See `Wire`."""
    with contextlib.suppress(OSError):  # It may be closed at the other end.
      self._socket.shutdown(socket.SHUT_RDWR)
    self._socket.close()


class TlsWire:
  """TLS over TCP.

  OpenSSL forbids to read and write one connection in two threads at once. So
  calls do not block and take turns under a lock; waiting is done outside.
  """

  def __init__(self, connection: ssl.SSLSocket) -> None:
    self._socket = connection
    self._lock = threading.Lock()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    self._poll_number = connection.fileno()  # A closed socket forgets it.

  def write(self, buffers: Sequence[Buffer]) -> None:
    """See `Wire`."""
    for view in _views(buffers):
      while view:
        part = view[:_TURN_BYTES]
        view = view[self._take_turns(self._socket.send, part) :]

  def write_some(self, buffers: Sequence[Buffer]) -> list[memoryview]:
    """See `Wire`; encryption is left to the thread that writes."""
    return _views(buffers)

  def read_into(self, view: memoryview, note: Callable[[], None]) -> None:
    """See `Wire`."""
    while view:
      view = view[self._take_turns(self._read_turn, view) :]
      note()

  def close(self) -> None:
    """See `Wire`."""
    with contextlib.suppress(OSError):  # It may be closed at the other end.
      # That of the plain socket, as another thread may be in one of TLS.
      socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
    with self._lock:
      self._socket.close()

  def _read_turn(self, view: memoryview) -> int:
    """Reads what is there, at most some records; returns its size."""
    done = 0
    while done < min(len(view), _TURN_BYTES):
      try:
        size = self._socket.recv_into(view[done:])
      except ssl.SSLWantReadError:
        if not done:
          raise
        break
      if not size:
        raise ConnectionError("closed by the other end")
      done += size
    return done

  def _take_turns(self, act: Callable[[memoryview], int], view: memoryview) -> int:
    while True:
      with self._lock:
        if self._socket.fileno() < 0:
          raise ConnectionError("closed at this end")
        try:
          return act(view)
        # Writes may want it too: TLS has messages of its own.
        except ssl.SSLWantReadError:
          event = select.POLLIN
        except ssl.SSLWantWriteError:
          event = select.POLLOUT
      poll = select.poll()
      poll.register(self._poll_number, event)
      poll.poll(_POLL_MS)  # Outside of the lock; then looks for a close.


def _views(buffers: Sequence[Buffer]) -> list[memoryview]:
  return [memoryview(b).cast("B") for b in buffers if len(b)]


def _skip(views: list[memoryview], size: int) -> None:
  """Drops the first `size` bytes."""
  while views and size >= len(views[0]):
    size -= len(views.pop(0))
  if size:
    views[0] = views[0][size:]
