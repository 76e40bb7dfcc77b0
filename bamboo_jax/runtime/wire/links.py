"""All links of this process, by channel."""

from collections.abc import Callable, Collection, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.runtime import places
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import link as link_lib
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op


@dataclasses.dataclass(frozen=True, kw_only=True)
class Links:
  """Links between nodes, made when they are first needed.

  Without `exchange` all nodes are in this process; with one, a single node is.
  """

  specs: Sequence[spec_lib.StageSpec]
  refresh: str
  exchange: ordered_sum.Exchange | None
  find_compute: Callable[[int], places.Place | None]
  _links: dict[channel_lib.Channel, link_lib.Link] = dataclasses.field(
      init=False, default_factory=dict
  )

  def get(self, channel: channel_lib.Channel) -> link_lib.Link:
    """Returns the link of a channel, the same one in all threads."""
    if link := self._links.get(channel):
      return link
    source, destination = channel.nodes
    exchange = None if source == destination else self.exchange
    place, like = self.find_compute(destination), self._shapes(channel)
    if place is None and exchange is not None:  # The sender is here.
      place = self.find_compute(source)
    to = None if place is None else self._find_target(channel, place, like)
    made: link_lib.Link
    if exchange is None:
      made = link_lib.LocalLink(to)
    else:
      made = link_lib.SocketLink(exchange, channel, like=like, to=to)
    # Another thread may have been faster.
    return self._links.setdefault(channel, made)

  def find(
      self, node: int, instruction: instruction_lib.Instruction
  ) -> link_lib.Link:
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

  def drain(self, alive: Collection[int]) -> None:
    """Drops values sent but not received, and all links with dead nodes."""
    for channel, link in list(self._links.items()):
      link.drop()
      if not set(alive).issuperset(channel.nodes):
        del self._links[channel]

  def _find_target(
      self, channel: channel_lib.Channel, place: places.Place, like: base.PyTree
  ) -> base.PyTree:
    """Returns the shardings of a value, at either end."""
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
        unit = spec.units[channel.unit]
        if self.refresh != "state":
          return spec_lib.to_unit(unit.accumulator, unit)
        state = spec_lib.to_unit(unit.state, unit)
        params = spec_lib.drop_frozen(unit, state.params)
        return state.replace(params=params)
      case "tie":
        _, layer, param = channel.key
        return spec.accumulator.grads[str(layer)][param]
    raise AssertionError(channel)
