"""Channels: which values travel between which nodes."""

import dataclasses


@dataclasses.dataclass(frozen=True, order=True)
class Channel:
  """A route for values between some nodes.

  Attributes:
    kind: "activation", "grad", "refresh", "tie" or "sum"; "ring" for a segment
      of a program over a pipeline, "meet" for a program that only connects.
    nodes: The ends, in the order of the devices of a program; of two, the first
      sends. Of a sum, one for each share, then those that hold none.
    key: The stage; of a tie also the layer and its parameter, of a sum and of a
      refresh the unit of the stage. Of a ring, whether its nodes are all.
  """

  kind: str
  nodes: tuple[int, ...]
  key: tuple[str | int, ...] = ()

  @property
  def stage(self) -> int:
    """The stage that it belongs to."""
    return self.key[0]

  def __str__(self) -> str:
    """Returns a name that no other channel has."""
    ends, key = (",".join(map(str, p)) for p in (self.nodes, self.key))
    return f"{self.kind} {ends} {key}"


NEVER = (0, 0)  # Since when a node that has just come has nothing on its way.


@dataclasses.dataclass(frozen=True)
class Begun:
  """A node's transfers, and where others reach it.

  Attributes:
    since: When all collective transfers had ended, as (view, step); comparable.
    channels: Collective transfers that have begun since, in order.
    address: Of its transport, see `runtime.wire.endpoints`.
    waits_for: Nodes whose values it waits for.
  """

  since: tuple[int, int] = NEVER
  channels: tuple[Channel, ...] = ()
  address: str = ""
  waits_for: tuple[int, ...] = ()
