"""Links: how an array gets from one node to another.

A link carries values of one shape in one direction, in order. Within a process
an array is copied from device to device; to another process it travels over the
transport. `Links` has all links of this process, by channel.
"""

import collections
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any, Protocol

import jax
import numpy as np

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
      exchange: transport_lib.Transport,
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
    on_mesh = len(shardings) == len(self._shapes) and all(
        isinstance(one, jax.sharding.NamedSharding) for one in shardings
    )
    self._shardings = shardings if on_mesh else None

  def send(self, value: base.PyTree) -> None:
    """See `Link`; the arrays need not be computed yet."""
    leaves = jax.tree.leaves(value)
    if self._shardings:
      pairs = zip(leaves, self._shardings, strict=True)
      leaves = [part for pair in pairs for part in _cut(*pair)]
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
      arrays = [_paste(rest, a.shape, to) for a, to in pairs]
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
    exchange = None if source == destination else self.exchange
    place, like = self.find_compute(destination), self._shapes(channel)
    if place is None and exchange is not None:  # The sender is here.
      place = self.find_compute(source)
    to = None if place is None else self._find_target(channel, place, like)
    made: Link
    if exchange is None:
      made = LocalLink(to)
    else:
      made = SocketLink(exchange, channel, like=like, to=to)
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
    """Returns the shardings of a value, at either end."""
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


def _cut(array: Any, sharding: jax.sharding.Sharding) -> list[Any]:
  """Returns the distinct parts of an array, in the order of their devices.

  An array with that sharding is not gathered: a part is what a device holds.
  """
  parts = _find_parts(array.shape, sharding)
  if isinstance(array, jax.Array):
    if array.sharding.is_equivalent_to(sharding, array.ndim):
      held = {shard.device: shard.data for shard in array.addressable_shards}
      return [held[devices[0]] for devices, _ in parts]
  whole = np.asarray(array)
  return [whole[index] for _, index in parts]


def _paste(
    parts: Iterator[Any], shape: tuple[int, ...], sharding: jax.sharding.Sharding
) -> jax.Array:
  """Returns an array joined from the next parts, which `_cut` made elsewhere.

  `sharding` equals that of `_cut`, but for the devices.
  """
  held: dict[jax.Device, jax.Array] = {}
  for devices, _ in _find_parts(shape, sharding):
    part = next(parts)
    held |= {device: jax.device_put(part, device) for device in devices}
  return jax.make_array_from_single_device_arrays(
      shape, sharding, [held[d] for d in sharding.devices_indices_map(shape)]
  )


@functools.lru_cache(4096)
def _find_parts(
    shape: tuple[int, ...], sharding: jax.sharding.Sharding
) -> list[tuple[list[jax.Device], tuple[slice, ...]]]:
  """Returns the distinct parts: the devices that hold one, and its index."""
  found: dict[Any, tuple[list[jax.Device], tuple[slice, ...]]] = {}
  for device, index in sharding.devices_indices_map(shape).items():
    key = tuple((s.start, s.stop) for s in index)
    found.setdefault(key, ([], index))[0].append(device)
  return [*found.values()]
