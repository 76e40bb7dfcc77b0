"""All links of this process, by what they carry and where they end."""

from collections.abc import Collection, Mapping
from typing import Any

import jax

from bamboo_jax.cluster import drain
from bamboo_jax.runtime.wire import gate as gate_lib
from bamboo_jax.runtime.wire import link as link_lib
from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op
PyTree = Any
Name = tuple[str | int, ...]  # What a link carries.


class Links:
  """Links between nodes, made when they are first needed.

  The nodes of this process that a link connects must ask for it in the same
  order as those of other processes, as making one may wait for the other end.
  """

  def __init__(
      self,
      devices: Mapping[int, jax.Device],
      *,
      shapes: Mapping[int, PyTree],
      kind: str,
      gate: gate_lib.Gate | None = None,
  ) -> None:
    """Makes no link yet.

    Args:
      devices: The device of each node.
      shapes: For each stage but the last, the shapes of its output.
      kind: See `link.make_link`.
      gate: See `link.make_link`.
    """
    self._devices = devices
    self._shapes = shapes
    self._kind = kind
    self._gate = gate
    self._links: dict[tuple[Name, int, int], link_lib.Link] = {}

  def find(
      self, node: int, instruction: instruction_lib.Instruction
  ) -> link_lib.Link:
    """Returns the link that `node` uses for a transfer."""
    ends = (node, instruction.peer)
    is_grad = instruction.op in (Op.SEND_GRAD, Op.RECV_GRAD)
    return self.get(
        ("grad" if is_grad else "activation", instruction.stage),
        *(ends if instruction.is_send else ends[::-1]),
        like=self._shapes[instruction.stage],
    )

  def connect(self, stage: int, source: int, destination: int) -> None:
    """Makes the links between the owners of `stage` and the next, both ways."""
    like = self._shapes[stage]
    self.get(("activation", stage), source, destination, like=like)
    self.get(("grad", stage), destination, source, like=like)

  def get(
      self, name: Name, source: int, destination: int, *, like: PyTree
  ) -> link_lib.Link:
    """Returns the link of this name between two nodes.

    Args:
      name: What it carries.
      source: Node that sends.
      destination: Node that receives.
      like: Shapes of what it carries.
    """
    key = (name, source, destination)
    if key not in self._links:
      self._links[key] = link_lib.make_link(
          self._devices[source],
          self._devices[destination],
          like=like,
          kind=self._kind,
          gate=self._gate,
          channel=drain.make_channel(
              "/".join(map(str, name)), (source, destination)
          ),
      )
    return self._links[key]

  def follow(self, channel: str, name: Name, *, like: PyTree) -> None:
    """Ends a transfer that another process has begun; blocks.

    Args:
      channel: What the link is called at the gate.
      name: What it carries.
      like: Shapes of what it carries.
    """
    link = self.get(name, *drain.ends_of(channel), like=like)
    assert isinstance(link, link_lib.PairLink), channel
    link.follow()

  def drain(self, nodes: Collection[int]) -> int:
    """Drops what `nodes` have sent and nobody received; returns how much."""
    return sum(
        link.drain()
        for (_, source, _), link in self._links.items()
        if source in nodes
    )
