"""Assigns nodes to the places of new pipelines."""

from collections.abc import Mapping, Sequence
import functools
import random

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.recovery import placement as placement_lib

Partition = partition_lib.Partition
Zones = Mapping[base.NodeId, str]

METHODS = ("order", "random", "cluster", "spread")


class Placer:
  """Assigns nodes to places; caches results by the sizes of zones.

  Args:
    method: "order" of the nodes, "random", "cluster" so that a pipeline is in
      few zones, or "spread" so that neighbours are in different ones;
      `ValueError` for another.
    has_replicas: Whether stages have shadows.
    seed: For the method "random".
    max_tries: For the method "spread", see `placement.place_nodes`.
  """

  def __init__(
      self,
      method: str,
      *,
      has_replicas: bool,
      seed: int = 0,
      max_tries: int = 5_000,
  ) -> None:
    if method not in METHODS:
      raise ValueError(base.suggest(method, METHODS, what="placement"))
    self.heeds_zones = method in ("cluster", "spread")
    self._method = method
    self._has_replicas = has_replicas
    self._seed = seed
    self._max_tries = max_tries
    self._spread = functools.cache(self._spread)

  def arrange(
      self,
      partitions: Sequence[Partition],
      nodes: Sequence[base.NodeId],
      zones: Zones,
  ) -> Sequence[base.NodeId]:
    """Returns the node of each place, perhaps followed by nodes without one.

    Nodes without a zone count as one zone; if no node has one, they stay in
    order.
    """
    if self._method == "random":
      nodes = list(nodes)
      # A text seeds alike in all processes.
      random.Random(f"{self._seed} {nodes}").shuffle(nodes)
    elif self.heeds_zones and any(zones.get(n) for n in nodes):
      nodes = self._by_zone(partitions, nodes, zones)
    return nodes

  def _by_zone(
      self,
      partitions: Sequence[Partition],
      nodes: Sequence[base.NodeId],
      zones: Zones,
  ) -> list[base.NodeId]:
    by_zone: dict[str, list[base.NodeId]] = {}
    for node in nodes:
      by_zone.setdefault(zones.get(node, ""), []).append(node)
    groups = sorted(by_zone.items(), key=lambda item: (-len(item[1]), item[0]))
    if self._method == "cluster":
      return [node for _, group in groups for node in group]
    waiting = [iter(group) for _, group in groups]
    sizes = tuple(len(group) for _, group in groups)
    return [
        next(waiting[zone]) for zone in self._spread(tuple(partitions), sizes)
    ]

  def _spread(
      self, partitions: tuple[Partition, ...], sizes: tuple[int, ...]
  ) -> tuple[int, ...]:
    """Returns a zone for each place; zones have `sizes` nodes."""
    labels = [zone for zone, size in enumerate(sizes) for _ in range(size)]
    pipelines, _ = placement_lib.place_nodes(
        {node: str(zone) for node, zone in base.by_node(labels)},
        partitions,
        has_replicas=self._has_replicas,
        max_tries=self._max_tries,
    )
    return tuple(labels[n] for p in pipelines for n in p.roles.owners)
