"""Records the transfers that this process begins, and can stop new ones.

A transfer that has begun ends only when the other end begins it too. After a
death the remaining nodes stop where they are, exchange the lists of transfers
that they have begun, and answer the unmatched ones; see
`spmd.processes.settle`.
"""

from collections.abc import Callable, Collection, Sequence
import contextlib
import threading

import jax

from bamboo_jax import base
from bamboo_jax.runtime.spmd.processes import black_holes, connections as connections_lib
from bamboo_jax.schedule import channel as channel_lib


class StoppedError(RuntimeError):
  """No transfer may begin until recovery has decided how to continue."""


class TransferLog:
  """Every transfer to another process is recorded here; thread-safe.

  Args:
    meet: Makes a context that helps nodes to connect during the first transfer
      between them. It may call its second argument to break connections made
      since then. By default it does nothing.
  """

  def __init__(
      self,
      meet: Callable[
          [Sequence[base.NodeId], Callable[[], None]], contextlib.AbstractContextManager[None]
      ] = lambda *_: contextlib.nullcontext(),
  ) -> None:
    self._meet = meet
    self._lock = threading.RLock()  # `begin` calls `check` with it.
    self._is_stopped = False
    self._stopped_for = self._answers_for = 0
    self._since = channel_lib.NEVER
    self._begun: list[channel_lib.Channel] = []
    self._connected: set[channel_lib.Channel] = set()
    self._connections = connections_lib.Connections()

  def begin(self, channel: channel_lib.Channel) -> None:
    """Records a transfer that begins now.

    Raises `StoppedError` if transfers are stopped.
    """
    with self._lock:
      self.check()
      self._begun.append(channel)

  def answer(self, channel: channel_lib.Channel) -> None:
    """Records a transfer that begins only to end another node's.

    Raises `StoppedError` if a newer view has already listed the begun
    transfers: that view would demand the answer again.
    """
    with self._lock:
      if self._answers_for < self._stopped_for:
        self.check()
      self._begun.append(channel)

  def answer_for(self, view: base.ViewId) -> None:
    """Sets the view for which transfers are answered from now on."""
    with self._lock:
      self._answers_for = view

  def run(self, channel: channel_lib.Channel, transfer: Callable[[], base.PyTree]) -> base.PyTree:
    """Runs a recorded transfer and returns its result.

    The first transfer of a channel makes a connection, so it blocks until done.
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
    """Raises `StoppedError` if transfers are stopped."""
    with self._lock:
      if self._is_stopped:
        raise StoppedError("Stopped by a new view.")

  def stop(self, view: base.ViewId, *, alive: Collection[base.NodeId] | None = None) -> None:
    """Stops new transfers.

    With `alive`, the members of `view`, transfers with other nodes fail.
    """
    with self._lock:
      self._is_stopped = True
      self._stopped_for = max(view, self._stopped_for)
    if alive is not None:
      self._connections.cut(alive)
      is_alive = frozenset(alive).issuperset
      with self._lock:
        self._connected = {c for c in self._connected if is_alive(c.nodes)}

  def find_stuck(self) -> set[black_holes.Ends]:
    """Returns the links that drop large packets; see `black_holes`."""
    return self._connections.find_stuck()

  def begun(self) -> channel_lib.Begun:
    """Returns the transfers begun since the last `settled`."""
    with self._lock:
      return channel_lib.Begun(self._since, tuple(self._begun))

  def settled(self, view: base.ViewId, step: base.StepId) -> None:
    """Records that every transfer begun so far has ended on all nodes.

    Allows transfers again, unless a view newer than `view` stopped them.
    """
    with self._lock:
      self._is_stopped = view < self._stopped_for
      self._since = (view, step)
      self._begun.clear()
