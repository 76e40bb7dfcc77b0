"""Assigns nodes to the places of new pipelines, by one of several methods.

Runs have one, `recovery.placement`; published tables compare these. "spread" places
nodes so that the failure of a zone costs as little as possible. Neighbours in a
pipeline, which are owner and shadow, go to different zones, and the copies of a layer
to as many zones as possible: `survival.Survival.score` is maximised, first the numbers
of zones and of nodes whose failure is survived. Nodes of a zone are interchangeable, so
the search is for a zone for each place. It improves a good arrangement by swaps; if the
result does not reach the upper bound of the score, it tries all arrangements, up to a
limit.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import math
import random
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.recovery import placement, survival as survival_lib

Partition = partition_lib.Partition
Zones = Mapping[base.NodeId, str]
_Arrangement = tuple[str, ...]  # Zone of each place, then of each spare.

METHODS = ("order", "random", "cluster", "spread")


class Placer:
  """Assigns nodes to places; caches results by the sizes of zones.

  Args:
    method: "order" of the nodes, "random", "cluster" so that a pipeline is in
      few zones, or "spread" so that neighbours are in different ones;
      `ValueError` for another.
    has_replicas: Whether stages have shadows.
    seed: For the method "random".
    max_tries: For the method "spread", see `place_nodes`.
  """

  def __init__(
      self, method: str, *, has_replicas: bool, seed: int = 0, max_tries: int = 5_000
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
      self, partitions: Sequence[Partition], nodes: Sequence[base.NodeId], zones: Zones
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
      self, partitions: Sequence[Partition], nodes: Sequence[base.NodeId], zones: Zones
  ) -> list[base.NodeId]:
    by_zone: dict[str, list[base.NodeId]] = {}
    for node in nodes:
      by_zone.setdefault(zones.get(node, ""), []).append(node)
    groups = sorted(by_zone.items(), key=lambda item: (-len(item[1]), item[0]))
    if self._method == "cluster":
      return [node for _, group in groups for node in group]
    waiting = [iter(group) for _, group in groups]
    sizes = tuple(len(group) for _, group in groups)
    return [next(waiting[zone]) for zone in self._spread(tuple(partitions), sizes)]

  def _spread(self, partitions: tuple[Partition, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a zone for each place; zones have `sizes` nodes."""
    labels = [zone for zone, size in enumerate(sizes) for _ in range(size)]
    pipelines, _ = place_nodes(
        {node: str(zone) for node, zone in base.by_node(labels)},
        partitions,
        has_replicas=self._has_replicas,
        max_tries=self._max_tries,
    )
    return tuple(labels[n] for p in pipelines for n in p.roles.owners)


class PlacedPipelines(NamedTuple):
  """Pipelines, one per partition, and the nodes without a place."""

  pipelines: tuple[pipelines_lib.Pipeline, ...]
  spares: tuple[base.NodeId, ...]


def place_nodes(
    zones: Mapping[base.NodeId, str],
    partitions: Sequence[Partition],
    *,
    has_replicas: bool = True,
    max_tries: int = 5_000,
) -> PlacedPipelines:
  """Returns the pipelines that survive most failures.

  Args:
    zones: Zone of each node that may be used. Among nodes of a zone the first
      get the first places.
    partitions: One per pipeline.
    max_tries: Most arrangements tried in each of two searches. If there are
      more, the result may not be the best.

  Raises:
    base.InfeasibleError: There are fewer nodes than stages, or no pipeline.
  """
  num_places = sum(p.num_stages for p in partitions)
  if not 0 < num_places <= len(zones):
    raise base.InfeasibleError(
        f"{len(zones)} nodes cannot take the {num_places} places of "
        f"{len(partitions)} pipelines."
    )
  search = _Search(
      zones=tuple(zones.values()),
      partitions=tuple(partitions),
      copies=survival_lib.Copies.of(
          placement.make_pipelines(partitions, base.nodes(num_places), has_replicas)
      ),
  )
  best = search.climb(search.start(), max_tries)
  if search.score(best) != search.bound():
    others = _choices(collections.Counter(search.zones), num_places)
    tried = itertools.islice(others, max_tries)
    best = max((best, *tried), key=search.score)
  waiting = {zone: [n for n in zones if zones[n] == zone] for zone in set(best)}
  nodes = [waiting[zone].pop(0) for zone in best]
  return PlacedPipelines(
      placement.make_pipelines(partitions, nodes[:num_places], has_replicas),
      spares=tuple(n for n in zones if n in nodes[num_places:]),
  )


@dataclasses.dataclass(frozen=True)
class _Search:
  """Searches for the best arrangement; nodes of `copies` are places."""

  zones: tuple[str, ...]
  partitions: tuple[partition_lib.Partition, ...]
  copies: survival_lib.Copies

  def score(self, arrangement: _Arrangement) -> tuple[int, ...]:
    return self.copies.survival(dict(base.by_node(arrangement))).score

  def bound(self) -> tuple[int, ...]:
    """Returns an upper bound of each part of the score."""
    num_zones = len(set(self.zones))
    least = min(map(len, self.copies.holders))
    most = -(-least // num_zones)  # Copies that share a zone, if spread evenly.
    num_together = sum(
        # Sizes of an even spread, which has the fewest pairs.
        math.comb((len(places) + i) // num_zones, 2) * num_layers
        for places, num_layers in self.copies.holders.items()
        for i in range(num_zones)
    )
    return (  # In the order of `Survival.score`.
        num_zones,
        min(num_zones, least) - 1,
        least - 1,
        num_zones,
        max(0, least - most - 1),
        sum(a != b for a, b in self.copies.pairs),
        -num_together,
    )

  def start(self) -> _Arrangement:
    """Returns an arrangement that is good for zones of equal size.

    Each place takes a zone without a neighbour and with few copies of its
    layers.
    """
    left = collections.Counter(self.zones)
    chosen: list[str] = []
    for place in range(sum(p.num_stages for p in self.partitions)):
      near = {
          chosen[min(pair)]
          for pair in self.copies.pairs
          if place in pair and min(pair) < place  # Later ones have no zone yet.
      }
      beside = collections.Counter(
          chosen[other]
          for places in self.copies.holders
          if place in places
          for other in places
          if other < place
      )
      # The name breaks ties, so that all runs agree.
      ranks = ((z in near, beside[z], -left[z], z) for z in +left)
      zone = min(ranks)[-1]
      chosen.append(zone)
      left[zone] -= 1
    return (*chosen, *sorted(left.elements()))

  def climb(self, arrangement: _Arrangement, max_tries: int) -> _Arrangement:
    """Returns an arrangement that no swap of two zones improves."""
    best, bound = self.score(arrangement), self.bound()
    swaps = tuple(itertools.combinations(range(len(arrangement)), 2))
    since, tries = 0, 0
    for i, j in itertools.cycle(swaps):
      # After a whole round without a gain it is a local optimum.
      if best == bound or since == len(swaps) or tries == max_tries:
        break
      since += 1
      if arrangement[i] == arrangement[j]:
        continue
      tries += 1
      swapped = list(arrangement)
      swapped[i], swapped[j] = swapped[j], swapped[i]
      score = self.score(tuple(swapped))
      if score > best:
        best, arrangement, since = score, tuple(swapped), 0
    return arrangement


def _choices(left: collections.Counter[str], num: int) -> Iterator[_Arrangement]:
  """Yields all orders of `num` zones out of `left`, then the sorted rest."""
  if not num:
    yield tuple(sorted(left.elements()))
    return
  for zone in sorted(+left):
    for others in _choices(left - collections.Counter((zone,)), num - 1):
      yield (zone, *others)
