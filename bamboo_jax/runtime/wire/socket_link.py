"""A link to a node of another process, over the transport."""

from typing import Protocol

import jax

from bamboo_jax import base
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.schedule import channel as channel_lib


class Link(Protocol):
  """One direction between two nodes; see `link`."""

  def send(self, value: base.PyTree) -> None:
    """Sends a value."""

  def receive(self) -> base.PyTree:
    """Returns the next value."""


class SocketLink:
  """The end of a link at this process; the other one is elsewhere.

  A value that was sent must be neither donated nor changed before the next
  attempt begins: it may have to be sent again.
  """

  def __init__(
      self,
      exchange: ordered_sum.Exchange,
      channel: channel_lib.Channel,
      *,
      like: base.PyTree,
      to: base.PyTree,
  ) -> None:
    """`to` are the devices or shardings of values that arrive here."""
    self._exchange, self._to = exchange, to
    self._source, self._destination = channel.nodes
    self._name = str(channel)
    self._shapes, self._structure = jax.tree.flatten(like)

  def send(self, value: base.PyTree) -> None:
    """Sends `value`, whose arrays need not be computed yet."""
    leaves = jax.tree.leaves(value)
    self._exchange.send(self._destination, self._name, leaves)

  def receive(self) -> base.PyTree:
    """Returns the next value, on its devices; blocks until it has arrived.

    Raises:
      base.PeerRemovedError, base.AttemptOverError: It will not come.
    """
    arrays = self._exchange.receive(self._source, self._name)
    found = [(a.shape, a.dtype) for a in arrays]
    wanted = [(a.shape, a.dtype) for a in self._shapes]
    assert found == wanted, (self._name, found, wanted)
    return jax.device_put(self._structure.unflatten(arrays), self._to)

  def drop(self) -> None:
    """Drops values that were not received; the transport does."""
