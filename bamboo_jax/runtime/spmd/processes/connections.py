"""Breaks the connections of transfers with nodes that are gone.

A transfer with a process that has died ends with an error, but one with a node
that only fell silent never ends, and neither does one whose two neighbours of
this process live. JAX cannot abort a transfer. So this module records which
connections are opened during the first transfer between some nodes, and shuts
them down when one of the nodes is gone.
"""

from collections.abc import Collection, Iterable, Iterator
import contextlib
import os
import socket
import struct
import threading

from bamboo_jax import base
from bamboo_jax.runtime.spmd.processes import black_holes

_NO_TIMEOUT = bytes(struct.calcsize("ll"))

# File descriptor, and the inode that tells it from earlier uses of the number.
_Socket = tuple[int, int]


class Connections:
  """The sockets of this process, by the nodes that they connect."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._found: dict[frozenset[base.NodeId], set[_Socket]] = {}
    self._before: set[_Socket] = set()
    self._ends: frozenset[base.NodeId] = frozenset()

  @contextlib.contextmanager
  def record(self, ends: Iterable[base.NodeId]) -> Iterator[None]:
    """Attributes Gloo's sockets opened inside the context to `ends`."""
    with self._lock:
      self._ends, self._before = frozenset(ends), _find_open()
    try:
      yield
    finally:
      with self._lock:
        self._record()
        self._ends = frozenset()

  def cut(self, alive: Collection[base.NodeId]) -> int:
    """Shuts down connections to nodes not in `alive`; returns their number."""
    with self._lock:
      self._record()
      gone = [ends for ends in self._found if not ends <= set(alive)]
      return sum(_shut_down(s) for e in gone for s in self._found.pop(e))

  def cut_new(self) -> None:
    """Shuts down connections opened since `record`, if it is still active."""
    with self._lock:
      self._record()
      for found in self._found.pop(self._ends, ()):
        _shut_down(found)

  def find_stuck(self) -> set[black_holes.Ends]:
    """Returns the links that retransmit large packets in vain."""
    with self._lock:
      known = set().union(*self._found.values())
    return {ends for found in known if (ends := _find_stuck(found))}

  def _record(self) -> None:
    if self._ends:
      new = filter(_is_of_gloo, _find_open() - self._before)
      self._found.setdefault(self._ends, set()).update(new)


def _find_open() -> set[_Socket]:
  """Returns all sockets of this process."""
  found = set()
  for name in os.listdir("/proc/self/fd"):
    try:
      target = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
      continue  # Closed meanwhile.
    if target.startswith("socket:"):
      found.add((int(name), int(target[len("socket:[") : -1])))
  return found


@contextlib.contextmanager
def _duplicate(found: _Socket) -> Iterator[socket.socket]:
  """Yields a second handle of a socket; `OSError` if it is gone."""
  number, inode = found
  with socket.socket(fileno=os.dup(number)) as duplicate:
    # After `dup`, which prevents a reuse from now on.
    if os.fstat(duplicate.fileno()).st_ino != inode:
      raise OSError("The file descriptor was reused for another socket.")
    yield duplicate


def _is_of_gloo(found: _Socket) -> bool:
  """Returns whether Gloo opened a socket, and not another thread.

  Of the sockets of this process only connected ones of Gloo set a kernel
  timeout; Python and gRPC wait by other means. Before the connection it cannot
  be told.
  """
  try:
    with _duplicate(found) as duplicate:
      given = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, len(_NO_TIMEOUT))
      listens = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
      return given != _NO_TIMEOUT or not (listens or _is_connected(duplicate))
  except OSError:
    return False


def _is_connected(opened: socket.socket) -> bool:
  try:
    opened.getpeername()
  except OSError:
    return False
  return True


def _find_stuck(found: _Socket) -> black_holes.Ends | None:
  with contextlib.suppress(OSError), _duplicate(found) as duplicate:
    option = socket.IPPROTO_TCP, socket.TCP_INFO
    info = duplicate.getsockopt(*option, black_holes.INFO.size)
    if black_holes.is_stuck(info):
      return duplicate.getsockname()[0], duplicate.getpeername()[0]
  return None  # Or closed meanwhile.


def _shut_down(found: _Socket) -> bool:
  """Shuts down a socket, which its owner then closes; False if it is gone."""
  try:
    with _duplicate(found) as duplicate:
      duplicate.shutdown(socket.SHUT_RDWR)
  except OSError:
    return False  # Closed meanwhile, or never connected.
  return True
