"""Links: how an array gets from one node to another.

A link carries values of one shape in one direction, in order. Within a process
an array is copied from device to device; to another process it travels over the
transport. `Links` has all links of this process, by channel.
"""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
from typing import Protocol

import jax

from bamboo_jax import base
from bamboo_jax.runtime import places
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib, instruction as instruction_lib

Op = instruction_lib.Op


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
    return self._values.popleft()  # In one process the send came first.

  def drop(self) -> None:
    self._values.clear()


class SocketLink:
  """The local end of a link to a node of another process.

  A value that was sent must be neither donated nor changed before the next
  attempt begins: it may have to be sent again.
  """

  def __init__(
      self,
      exchange: transport_lib.Transport,
      channel: channel_lib.Channel,
      *,
      like: base.PyTree,
      to: base.PyTree,
  ) -> None:
    """`to` is the device, or shardings, of values that are received here."""
    self._exchange, self._to = exchange, to
    self._source, self._destination = channel.nodes
    self._name = str(channel)
    self._shapes, self._structure = jax.tree.flatten(like)

  def send(self, value: base.PyTree) -> None:
    """See `Link`; the arrays need not be computed yet."""
    self._exchange.send(self._destination, self._name, jax.tree.leaves(value))

  def receive(self) -> base.PyTree:
    """See `Link`; blocks until the value has arrived.

    Raises:
      base.PeerRemovedError, base.AttemptOverError: It can no longer arrive.
    """
    arrays = self._exchange.receive(self._source, self._name)
    found, wanted = ([(a.shape, a.dtype) for a in each] for each in (arrays, self._shapes))
    assert found == wanted, (self._name, found, wanted)
    return jax.device_put(jax.tree.unflatten(self._structure, arrays), self._to)

  def wait(self, secs: float) -> bool:
    """Waits for a value, at most `secs`; returns whether it has arrived.

    Raises as `receive`.
    """
    return self._exchange.wait(self._source, self._name, secs)

  def drop(self) -> None:
    """See `Link`; nothing, as the next attempt of the transport drops them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Links:
  """Links between nodes, made when they are first needed.

  Without `exchange` all nodes are in this process; with one, a single node is.
  """

  specs: Sequence[spec_lib.StageSpec]
  units: Mapping[int, spec_lib.StageSpec]  # By first layer.
  refresh: str
  exchange: transport_lib.Transport | None
  find_compute: Callable[[base.NodeId], places.Place | None]
  _links: dict[channel_lib.Channel, Link] = dataclasses.field(init=False, default_factory=dict)

  def get(self, channel: channel_lib.Channel) -> Link:
    """Returns the link of a channel, the same one in all threads."""
    if link := self._links.get(channel):
      return link
    source, destination = channel.nodes
    place, like = self.find_compute(destination), self._shapes(channel)
    to = None if place is None else self._find_target(channel, place, like)
    made: Link
    if self.exchange is None or source == destination:
      made = LocalLink(to)
    else:
      made = SocketLink(self.exchange, channel, like=like, to=to)
    # Another thread may have been faster.
    return self._links.setdefault(channel, made)

  def find(self, node: base.NodeId, instruction: instruction_lib.Instruction) -> Link:
    """Returns the link that `node` uses for a transfer."""
    assert instruction.peer is not None, instruction
    ends = (node, instruction.peer)
    is_grad = instruction.op in (Op.SEND_GRAD, Op.RECV_GRAD)
    return self.get(
        channel_lib.Channel(
            "grad" if is_grad else "activation",
            ends if instruction.is_send else ends[::-1],
            (instruction.stage,),
        )
    )

  def drain(self, alive: Collection[base.NodeId]) -> None:
    """Drops values sent but not received, and all links with dead nodes."""
    for channel, link in list(self._links.items()):
      link.drop()
      if not set(alive).issuperset(channel.nodes):
        del self._links[channel]

  def _find_target(
      self, channel: channel_lib.Channel, place: places.Place, like: base.PyTree
  ) -> base.PyTree:
    model = self.specs[0].model.name
    match channel.kind:
      case "refresh":
        return places.of_state(place, like, model)
      case "tie":
        param = channel.key[-1]
        return places.of_state(place, {param: like}, model)[param]
    return places.of_data(place, like)

  def _shapes(self, channel: channel_lib.Channel) -> base.PyTree:
    match channel.kind, channel.key:
      case "activation" | "grad", (int(stage),):
        return self.specs[stage].outputs
      case "refresh", (int(first),):
        unit = self.units[first]
        if self.refresh != "state":
          return unit.accumulator
        return spec_lib.without_frozen(unit, spec_lib.take(unit, unit.state))
      case "tie", (_, int(first), int(layer), param):
        return self.units[first].accumulator.grads[layer][param]
    raise AssertionError(channel)
