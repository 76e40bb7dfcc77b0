"""All links of this process, by channel."""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses

import jax

from bamboo_jax import base
from bamboo_jax.runtime import places
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import link as link_lib
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.runtime.wire import socket_link
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op


@dataclasses.dataclass(frozen=True, kw_only=True)
class Links:
  """Links between nodes, made when they are first needed.

  The nodes of this process that a link connects must ask for it in the same
  order as those of other processes, as making one may wait for the other end.
  """

  specs: Sequence[spec_lib.StageSpec]
  devices: Mapping[int, jax.Device]
  kind: str
  refresh: str
  log: transfer_log.TransferLog
  exchange: ordered_sum.Exchange | None
  find_compute: Callable[[int], places.Place | None]
  _links: dict[channel_lib.Channel, socket_link.Link] = dataclasses.field(
      init=False, default_factory=dict
  )

  def get(self, channel: channel_lib.Channel) -> socket_link.Link:
    """Returns the link of a channel, the same to all threads."""
    if link := self._links.get(channel):
      return link
    source, destination = channel.nodes
    like = self._shapes(channel)
    place = self.find_compute(destination)
    if self.exchange is not None and source != destination:
      link = socket_link.SocketLink(
          self.exchange,
          channel,
          like=like,
          to=place and self._find_target(channel, place, like),
      )
      return self._links.setdefault(channel, link)
    link = link_lib.make_link(
        self.devices[source],
        self.devices[destination],
        like=like,
        to=None if place is None else self._find_target(channel, place, like),
        kind=self.kind,
        channel=channel,
        log=self.log,
    )
    return self._links.setdefault(channel, link)

  def find(
      self, node: int, instruction: instruction_lib.Instruction
  ) -> socket_link.Link:
    """Returns the link that `node` uses for a transfer."""
    ends = (node, instruction.peer)
    is_grad = instruction.op in (Op.SEND_GRAD, Op.RECV_GRAD)
    return self.get(
        channel_lib.Channel(
            "grad" if is_grad else "activation",
            ends if instruction.is_send else ends[::-1],
            (instruction.stage,),
        )
    )

  def answer(self, channel: channel_lib.Channel) -> None:
    """Ends a transfer that another process has begun; blocks."""
    link = self.get(channel)
    assert isinstance(link, link_lib.PairLink), channel
    link.answer()

  def drain(self, alive: Collection[int]) -> None:
    """Drops what was sent and not received, and all links with the dead."""
    for channel, link in list(self._links.items()):
      link.drop()
      if not set(alive).issuperset(channel.nodes):
        del self._links[channel]

  def _find_target(
      self, channel: channel_lib.Channel, place: places.Place, like: base.PyTree
  ) -> base.PyTree:
    """Returns the shardings at the destination."""
    model = self.specs[channel.stage].model.name
    match channel.kind:
      case "refresh":
        return places.of_state(place, like, model)
      case "tie":
        param = channel.key[2]
        return places.of_state(place, {param: like}, model)[param]
    return places.of_data(place, like)

  def _shapes(self, channel: channel_lib.Channel) -> base.PyTree:
    spec = self.specs[channel.stage]
    match channel.kind:
      case "activation" | "grad":
        return spec.outputs
      case "refresh":
        unit = spec.units[channel.key[1]]
        whole = unit.state if self.refresh == "state" else unit.accumulator
        return spec_lib.to_unit(whole, unit)
      case "tie":
        _, layer, param = channel.key
        return spec.accumulator.grads[layer][param]
    raise AssertionError(channel)
