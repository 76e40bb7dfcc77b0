"""A connected socket, plain or TLS, which carries values in one direction."""

from collections.abc import Sequence
import contextlib
import select
import socket
import ssl
from typing import Any

_BUFFER_BYTES = 1 << 22

Buffer = Any  # Bytes, a view of some, or an array of numpy.


class Wire:
  """A connection; methods raise `OSError` once it is gone.

  One thread at a time reads or writes, as OpenSSL demands; the thread that owns
  a connection closes it, once no other one uses it.
  """

  def __init__(self, connection: socket.socket) -> None:
    self._socket = connection
    self._is_plain = not isinstance(connection, ssl.SSLSocket)
    if self._is_plain:
      for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)

  def set_timeout(self, secs: float | None) -> None:
    """Sets how long a read or write may wait; None: for ever."""
    self._socket.settimeout(secs)

  def write(self, buffers: Sequence[Buffer]) -> None:
    """Writes all bytes; blocks."""
    for buffer in buffers:
      if len(buffer):
        self._socket.sendall(buffer)

  def read_into(self, view: memoryview) -> None:
    """Fills `view`; blocks."""
    flags = socket.MSG_WAITALL if self._is_plain else 0
    while view:
      size = self._socket.recv_into(view, len(view), flags)
      if not size:
        raise ConnectionError("closed by the other end")
      view = view[size:]

  def wait_until_lost(self) -> None:
    """Blocks until the connection is gone; nothing may be left to read."""
    poll = select.poll()
    poll.register(self._socket.fileno(), select.POLLIN | select.POLLRDHUP)
    poll.poll()

  def cut(self) -> None:
    """Ends the connection, in any thread; those that use it return."""
    with contextlib.suppress(OSError):  # It may be closed at the other end.
      # That of the plain socket, as another thread may be in one of TLS.
      socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

  def close(self) -> None:
    """Ends the connection; its number may then be that of another one."""
    self.cut()
    self._socket.close()
