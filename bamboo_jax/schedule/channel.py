"""Channels: routes of values between nodes."""

import dataclasses

from bamboo_jax import base


@dataclasses.dataclass(frozen=True, order=True)
class Channel:
  """A route for values between some nodes.

  Attributes:
    kind: "activation", "grad", "refresh", "tie" or "sum".
    nodes: Source and destination. Of a sum, a node for each share, then the
      nodes without a share.
    key: The stage; of a tie also the layer and its parameter, of a sum and of a
      refresh also the unit.
  """

  kind: str
  nodes: tuple[base.NodeId, ...]
  key: tuple[str | int, ...] = ()

  @property
  def stage(self) -> base.StageId:
    """The stage that it belongs to."""
    return base.StageId(self._index(0))

  @property
  def unit(self) -> int:
    """Index of the unit in its stage, for a sum or a refresh."""
    return self._index(1)

  def _index(self, place: int) -> int:
    index = self.key[place]
    assert isinstance(index, int), self
    return index

  def __str__(self) -> str:
    """Returns a unique name of the channel."""
    ends, key = (",".join(map(str, p)) for p in (self.nodes, self.key))
    return f"{self.kind} {ends} {key}"


@dataclasses.dataclass(frozen=True)
class Begun:
  """A node's address, and its open waits.

  Attributes:
    address: Address of its transport, see `runtime.wire.endpoints`.
    waits_for: Nodes from which it waits for values.
    ring: Nodes whose processes run one program with it, see `runtime.spmd`.
    num_segments: Number of segments of that program that it has started.
  """

  address: str = ""
  waits_for: tuple[base.NodeId, ...] = ()
  ring: tuple[base.NodeId, ...] = ()
  num_segments: int = 0
