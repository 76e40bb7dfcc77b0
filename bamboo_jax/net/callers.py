"""Callers of a socket that anybody can reach: idle ones use up no files."""

import contextlib
import socket
import threading


class Callers:
  """Connections that have not said who they are; thread-safe.

  If there are more than `most`, the oldest connection is shut down, so that the
  thread that reads it returns and closes it.
  """

  def __init__(self, most: int) -> None:
    self._most = most
    self._connections: dict[socket.socket, None] = {}  # The oldest first.
    self._lock = threading.Lock()

  def __len__(self) -> int:
    return len(self._connections)

  def add(self, connection: socket.socket) -> None:
    """Adds a connection; remove it before it is closed."""
    with self._lock:
      self._connections[connection] = None
      if len(self._connections) > self._most:
        oldest = next(iter(self._connections))
        del self._connections[oldest]
        with contextlib.suppress(OSError):  # It has just gone.
          oldest.shutdown(socket.SHUT_RDWR)

  def remove(self, connection: socket.socket) -> None:
    """Removes a connection, if it is there."""
    with self._lock:
      self._connections.pop(connection, None)
