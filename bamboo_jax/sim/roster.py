"""The live nodes and their places."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.traces import trace as trace_lib


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LiveNode:
  """A live node; a node that returns under the same name is another one."""

  name: str


class News(NamedTuple):
  """The nodes that joined, left, or got a preemption notice at an instant."""

  added: tuple[LiveNode, ...] = ()
  lost: tuple[LiveNode, ...] = ()
  noticed: tuple[LiveNode, ...] = ()


class NodeRoster:
  """Nodes by name and by place; booting nodes have no place yet."""

  def __init__(self) -> None:
    self._live: dict[str, LiveNode] = {}
    self._places: list[LiveNode] = []

  @property
  def num_live(self) -> int:
    return len(self._live)

  def follow(self, events: Iterable[trace_lib.Event]) -> News:
    """Applies the events of an instant."""
    added, lost, noticed = [], [], []
    for event in events:
      if event.kind == "add":
        node = self._live[event.node] = LiveNode(event.node)
        added.append(node)
      elif event.kind == "remove":
        lost.append(self._live.pop(event.node))
      else:
        noticed.append(self._live[event.node])
    added = filter(self._is_live, added)
    return News(tuple(added), tuple(lost), tuple(noticed))

  def seat(self, nodes: Iterable[LiveNode]) -> tuple[base.NodeId, ...]:
    """Gives the next places to the nodes that are still alive; returns them."""
    first = len(self._places)
    self._places += filter(self._is_live, nodes)
    return tuple(base.nodes(first, len(self._places)))

  def find(self, nodes: Iterable[LiveNode]) -> frozenset[base.NodeId]:
    """Returns the places of the nodes that have one."""
    places = self._places
    found = [places.index(node) for node in nodes if node in places]
    return frozenset(map(base.NodeId, found))

  def rearrange(self, numbers: Sequence[base.NodeId]) -> None:
    """Permutes the places: place i gets the node of place `numbers[i]`."""
    self._places = [self._places[number] for number in numbers]

  def zones(self) -> Mapping[base.NodeId, str]:
    return {i: trace_lib.zone_of(n.name) for i, n in base.by_node(self._places)}

  def names(self, places: Iterable[base.NodeId]) -> tuple[str, ...]:
    return tuple(self._places[place].name for place in places)

  def _is_live(self, node: LiveNode) -> bool:
    return self._live.get(node.name) is node
