"""Links: how an array gets from one node to another, by channel.

Within a process an array is copied from device to device; to another process it
travels over the transport. In both, the values of a channel arrive in order.
"""

import collections
from collections.abc import Callable
import dataclasses

import jax

from bamboo_jax import base
from bamboo_jax.runtime import places
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib

# Returns the shardings of a value on the node that receives it.
FindTarget = Callable[[places.Place, base.PyTree], base.PyTree]
_Queue = collections.deque[base.PyTree]


@dataclasses.dataclass(frozen=True)
class Links:
  """All links of this process.

  Attributes:
    exchange: None if all nodes are in this process; with one, a single node is.
    find_place: Returns where a local node computes.
  """

  exchange: transport_lib.Transport | None
  find_place: Callable[[base.NodeId], places.Place]
  _local: dict[channel_lib.Channel, _Queue] = dataclasses.field(
      init=False, default_factory=lambda: collections.defaultdict(collections.deque)
  )

  def find_remote(self, channel: channel_lib.Channel) -> transport_lib.Transport | None:
    """Returns the transport of a channel; None if both ends are in this process."""
    source, destination = channel.nodes
    return None if source == destination else self.exchange

  def send(
      self,
      channel: channel_lib.Channel,
      value: base.PyTree,
      find_target: FindTarget = places.of_data,
  ) -> None:
    """Sends arrays on the source; returns before they have arrived.

    They need not be computed yet. To another process they must be neither donated
    nor changed before the next attempt begins: they may have to be sent again.
    """
    if exchange := self.find_remote(channel):
      exchange.send(channel.nodes[1], str(channel), jax.tree.leaves(value))
      return
    where = find_target(self.find_place(channel.nodes[1]), value)
    # Not an alias: either end may be told to delete its arrays. The copy starts when
    # the value is ready, and cannot fail.
    self._local[channel].append(jax.device_put(value, where, may_alias=False))

  def receive(
      self,
      channel: channel_lib.Channel,
      like: base.PyTree,
      find_target: FindTarget = places.of_data,
  ) -> base.PyTree:
    """Returns the next value, arrays on the destination, with the shapes `like`.

    Blocks until a value of another process has arrived. Raises:
      base.PeerRemovedError, base.AttemptOverError: It can no longer arrive.
    """
    exchange = self.find_remote(channel)
    if exchange is None:  # In one process the send came first.
      return self._local[channel].popleft()
    arrays = exchange.receive(channel.nodes[0], str(channel))
    shapes, structure = jax.tree.flatten(like)
    found, wanted = ([(a.shape, a.dtype) for a in each] for each in (arrays, shapes))
    assert found == wanted, (channel, found, wanted)
    value = jax.tree.unflatten(structure, arrays)
    return jax.device_put(value, find_target(self.find_place(channel.nodes[1]), value))

  def drain(self) -> None:
    """Drops values that were sent and not received; a new attempt drops those of sockets."""
    self._local.clear()
