"""Links: how an array gets from one node to another.

A link carries values of one shape in one direction, in order. Within a process
an array is copied from device to device; to another process it travels over the
transport.
"""

import collections
from typing import Protocol

import jax

from bamboo_jax import base
from bamboo_jax.runtime.wire import mesh as mesh_lib
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.schedule import channel as channel_lib


class Link(Protocol):
  """One direction between two nodes; values arrive in order."""

  def send(self, value: base.PyTree) -> None:
    """Sends a value, arrays on the source; returns before it has arrived."""

  def receive(self) -> base.PyTree:
    """Returns the next value, arrays on the destination."""

  def drop(self) -> None:
    """Drops values that were sent and not received."""


class LocalLink:
  """A link between two devices of this process, or from a device to itself.

  Nothing blocks: the copy starts when the value is ready, and cannot fail.
  """

  def __init__(self, to: base.PyTree) -> None:
    """Makes a link to a device, or to shardings as a value has leaves."""
    self._to = to
    self._values = collections.deque[base.PyTree]()

  def send(self, value: base.PyTree) -> None:
    """See `Link`; the arrays are read, not donated."""
    # Either end may be told to delete its arrays.
    self._values.append(jax.device_put(value, self._to, may_alias=False))

  def receive(self) -> base.PyTree:
    """See `Link`."""
    return self._values.popleft()  # In one process the send came first.

  def drop(self) -> None:
    """See `Link`."""
    self._values.clear()


class SocketLink:
  """The local end of a link to a node of another process.

  Arrays on a mesh are sent in parts, as its devices hold them. A value that was
  sent must be neither donated nor changed before the next attempt begins: it
  may have to be sent again.
  """

  def __init__(
      self,
      exchange: ordered_sum.Exchange,
      channel: channel_lib.Channel,
      *,
      like: base.PyTree,
      to: base.PyTree,
  ) -> None:
    """`to` are the devices or shardings of values at this end."""
    self._exchange, self._to = exchange, to
    self._source, self._destination = channel.nodes
    self._name = str(channel)
    self._shapes, self._structure = jax.tree.flatten(like)
    shardings = jax.tree.leaves(to)
    on_mesh = [*map(_is_mesh, shardings)] == [True] * len(self._shapes)
    self._shardings = shardings if on_mesh else None

  def send(self, value: base.PyTree) -> None:
    """See `Link`; the arrays need not be computed yet."""
    leaves = jax.tree.leaves(value)
    if self._shardings:
      pairs = zip(leaves, self._shardings, strict=True)
      leaves = [part for pair in pairs for part in mesh_lib.cut(*pair)]
    self._exchange.send(self._destination, self._name, leaves)

  def receive(self) -> base.PyTree:
    """See `Link`; blocks until the value has arrived.

    Raises:
      base.PeerRemovedError, base.AttemptOverError: It can no longer arrive.
    """
    arrays = self._exchange.receive(self._source, self._name)
    if self._shardings:
      rest = iter(arrays)
      pairs = zip(self._shapes, self._shardings, strict=True)
      arrays = [mesh_lib.paste(rest, a.shape, to) for a, to in pairs]
      assert next(rest, None) is None, self._name
    found = [(a.shape, a.dtype) for a in arrays]
    wanted = [(a.shape, a.dtype) for a in self._shapes]
    assert found == wanted, (self._name, found, wanted)
    value = jax.tree.unflatten(self._structure, arrays)
    return value if self._shardings else jax.device_put(value, self._to)

  def wait(self, secs: float) -> bool:
    """Waits for a value, at most `secs`; returns whether it has arrived.

    Raises as `receive`.
    """
    return self._exchange.wait(self._source, self._name, secs)

  def drop(self) -> None:
    """See `Link`; nothing, as the next attempt of the transport drops them."""


def _is_mesh(place: base.PyTree) -> bool:
  return isinstance(place, jax.sharding.NamedSharding)
