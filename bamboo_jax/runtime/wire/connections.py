"""Breaks the connections of transfers with nodes that are gone.

A transfer with a process that has died ends with an error, but one with a node
that only fell silent never ends, and neither does one in which both neighbours
of this process live. JAX cannot abort a transfer. So it is noted here which
connections come with the first transfer between some nodes, and if one of them
is gone, those are shut down.
"""

from collections.abc import Collection, Iterable, Iterator
import contextlib
import os
import socket
import threading

# Number of an open file, and what tells it from others that have had it.
_Socket = tuple[int, int]


class Connections:
  """The sockets of this process by the nodes that they connect."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._found: dict[frozenset[int], set[_Socket]] = {}
    self._before: set[_Socket] = set()
    self._ends: frozenset[int] = frozenset()

  @contextlib.contextmanager
  def record(self, ends: Iterable[int]) -> Iterator[None]:
    """Takes the sockets that are opened meanwhile for those between `ends`."""
    with self._lock:
      self._ends, self._before = frozenset(ends), _find_open()
    try:
      yield
    finally:
      with self._lock:
        self._record()
        self._ends = frozenset()

  def cut(self, alive: Collection[int]) -> int:
    """Shuts down those that connect others than `alive`; returns how many."""
    with self._lock:
      self._record()
      gone = [ends for ends in self._found if not ends <= set(alive)]
      return sum(_shut_down(s) for e in gone for s in self._found.pop(e))

  def _record(self) -> None:
    if self._ends:
      new = _find_open() - self._before
      self._found.setdefault(self._ends, set()).update(new)


def _find_open() -> set[_Socket]:
  """Returns all sockets of this process."""
  found = set()
  for name in os.listdir("/proc/self/fd"):
    try:
      target = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
      continue  # It has been closed.
    if target.startswith("socket:"):
      found.add((int(name), int(target[len("socket:[") : -1])))
  return found


def _shut_down(found: _Socket) -> bool:
  """Shuts down a socket, which its owner then closes; False if it is gone."""
  number, inode = found
  try:
    with socket.socket(fileno=os.dup(number)) as duplicate:
      if os.fstat(duplicate.fileno()).st_ino != inode:
        return False
      duplicate.shutdown(socket.SHUT_RDWR)
  except OSError:
    return False  # It has been closed, or was never connected.
  return True
