"""Channels: routes of values between nodes."""

import dataclasses
from typing import NamedTuple

from bamboo_jax import base


class Channel(NamedTuple):
  """A route for values between some nodes.

  Attributes:
    kind: "activations", "gradients", "refresh", "tie" or "sum".
    nodes: Source and destination. Of a sum or tie, a node for each term, then the
      nodes without one.
    key: The stage of an activation or gradient, the first layer of the unit of a
      sum or refresh, and the first `TiedCopy`.
  """

  kind: str
  nodes: tuple[base.NodeId, ...]
  key: tuple[str | int, ...] = ()

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
  """

  address: str = ""
  waits_for: tuple[base.NodeId, ...] = ()
  ring: tuple[base.NodeId, ...] = ()
