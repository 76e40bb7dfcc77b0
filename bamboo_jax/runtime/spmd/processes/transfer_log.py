"""Records which transfers this process begins, and can stop it from doing so.

A transfer that has been begun ends only when the other end begins it too. When
a node has died, those that are left stop where they are, tell each other what
they have begun, and answer what is left; see `spmd.processes.settle`.
"""

from collections.abc import Callable, Collection, Sequence
import contextlib
import threading

import jax

from bamboo_jax import base
from bamboo_jax.runtime.spmd.processes import black_holes
from bamboo_jax.runtime.spmd.processes import connections as connections_lib
from bamboo_jax.schedule import channel as channel_lib


class StoppedError(RuntimeError):
  """Nothing new may begin until it is decided how to go on."""


class TransferLog:
  """Passed by all transfers to other processes; safe in any thread.

  Args:
    meet: Makes what helps nodes to connect while the first transfer between
      them runs, and may break the connections made meanwhile by a call of its
      second argument; by default nothing.
  """

  def __init__(
      self,
      meet: Callable[
          [Sequence[int], Callable[[], None]],
          contextlib.AbstractContextManager[None],
      ] = lambda *_: contextlib.nullcontext(),
  ) -> None:
    self._meet = meet
    self._lock = threading.RLock()
    self._is_stopped = False
    self._stopped_for = self._answers_for = 0
    self._since = channel_lib.NEVER
    self._begun: list[channel_lib.Channel] = []
    self._connected: set[channel_lib.Channel] = set()
    self._connections = connections_lib.Connections()

  def begin(self, channel: channel_lib.Channel) -> None:
    """Records a transfer that begins now; may raise `StoppedError`."""
    with self._lock:
      self.check()
      self._begun.append(channel)

  def answer(self, channel: channel_lib.Channel) -> None:
    """Records a transfer that begins only to end that of another node.

    Raises `StoppedError` if a newer view has asked what had begun: there it
    would be owed again.
    """
    with self._lock:
      if self._answers_for < self._stopped_for:
        self.check()
      self._begun.append(channel)

  def answer_for(self, view: int) -> None:
    """Records that answers from now on are those that a view owes."""
    with self._lock:
      self._answers_for = view

  def run(
      self, channel: channel_lib.Channel, transfer: Callable[[], base.PyTree]
  ) -> base.PyTree:
    """Returns the result of a transfer that has been recorded.

    The first one of a channel makes a connection, so it is waited for.
    """
    if channel in self._connected:
      return transfer()
    nodes, cut = channel.nodes, self._connections.cut_new
    with self._connections.record(nodes), self._meet(nodes, cut):
      result = jax.block_until_ready(transfer())
    with self._lock:
      self._connected.add(channel)
    return result

  def check(self) -> None:
    """Raises `StoppedError` if nothing may begin."""
    with self._lock:
      if self._is_stopped:
        raise StoppedError("Stopped by a new view.")

  def stop(
      self, view: int, *, alive: Collection[int] | None = None
  ) -> channel_lib.Begun:
    """Stops what has not begun; returns what has since all was settled.

    With `alive`, the members of `view`, transfers with others fail.
    """
    with self._lock:
      self._is_stopped = True
      self._stopped_for = max(view, self._stopped_for)
    if alive is not None:
      self._connections.cut(alive)
      is_alive = frozenset(alive).issuperset
      with self._lock:
        self._connected = {c for c in self._connected if is_alive(c.nodes)}
    return self.begun()

  def resume(self, view: int) -> None:
    """Lets transfers begin in a view, unless a newer one has stopped them."""
    with self._lock:
      self._is_stopped = view < self._stopped_for

  def find_stuck(self) -> set[black_holes.Ends]:
    """Returns the links that drop large packets; see `black_holes`."""
    return self._connections.find_stuck()

  def begun(self) -> channel_lib.Begun:
    """Returns what has begun since all was settled."""
    with self._lock:
      return channel_lib.Begun(self._since, tuple(self._begun))

  def settle(self, view: int, step: int) -> None:
    """Records that all that was begun has ended everywhere."""
    with self._lock:
      self._since = (view, step)
      self._begun.clear()
