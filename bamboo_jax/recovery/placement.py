"""Assigns nodes to the places of new pipelines, so that the failure of a zone costs little.

Neighbours in a pipeline, which are owner and shadow, go to different zones, and the
copies of a layer are spread over zones; within a zone both hold for hosts. Each place
takes the zone with the fewest conflicts with earlier places. Then pairs of nodes change
places as long as that resolves conflicts, the pair that resolves most first.

The region of a zone is what stands before the slash in its name, as in "us-east/a". If a
slow link joins regions, each place first gets a region, so that little crosses the link.
"""

from collections.abc import Mapping, Sequence
import functools
import itertools

import numpy as np

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.schedule import failover

Partitions = Sequence[partition_lib.Partition]
Zones = Mapping[base.NodeId, str]  # As "zone", or as "zone|host".


def region_of(zone: str) -> str:
  """Returns the region of a zone, "" without one."""
  return zone.partition("|")[0].rpartition("/")[0]


def check_zone(zone: str) -> None:
  """Raises `ValueError` unless a zone is "", a name, or region/zone."""
  if zone and "" in zone.split("/"):
    raise ValueError(f"A zone must be a name such as a, or region/zone such as us/a, got {zone!r}.")


_APART = 8  # Two neighbours in one zone count as much as this number of shared layers.


def make_pipelines(
    partitions: Partitions, nodes: Sequence[base.NodeId], has_replicas: bool
) -> tuple[pipelines_lib.Pipeline, ...]:
  """Returns pipelines whose stages `nodes` own, pipeline by pipeline."""
  rest = iter(nodes)
  pipelines = []
  for partition in partitions:
    owners = itertools.islice(rest, partition.num_stages)
    roles = failover.Roles.initial(owners, has_replicas=has_replicas)
    pipelines.append(pipelines_lib.Pipeline(partition, roles))
  return tuple(pipelines)


def arrange(
    partitions: Partitions,
    nodes: Sequence[base.NodeId],
    zones: Zones,
    *,
    has_replicas: bool,
    regions: Sequence[str] = (),
) -> Sequence[base.NodeId]:
  """Returns the node of each place, pipeline by pipeline, then the nodes without one.

  Nodes without a zone count as one zone; if no node has one, they stay in order. Among
  nodes of a host, or of a zone, the first get the first places.

  Args:
    regions: Region of each place, then of each spare; () allows any.
  """
  hosts: dict[str, list[base.NodeId]] = {}
  for node in nodes:
    hosts.setdefault(zones.get(node, ""), []).append(node)
  if len(hosts) < 2:
    return nodes
  sizes: dict[str, int] = {}
  for label, group in hosts.items():
    zone = label.partition("|")[0]
    sizes[zone] = sizes.get(zone, 0) + len(group)
  order = sorted(sizes, key=lambda zone: (-sizes[zone], zone))
  groups = sorted(
      ((order.index(label.partition("|")[0]), -len(group), label) for label, group in hosts.items())
  )
  # The result depends on sizes only, so simulations ask for few.
  places = _spread(
      tuple(partitions),
      tuple((zone, -size) for zone, size, _ in groups),
      has_replicas,
      tuple(region_of(label) if regions else "" for *_, label in groups),
      tuple(regions) or ("",) * len(nodes),
  )
  waiting = [iter(hosts[label]) for *_, label in groups]
  return [next(waiting[group]) for group in places]


@functools.lru_cache(maxsize=1_000)
def _spread(
    partitions: tuple[partition_lib.Partition, ...],
    groups: tuple[tuple[int, int], ...],
    has_replicas: bool,
    regions: tuple[str, ...],
    wanted: tuple[str, ...],
) -> tuple[int, ...]:
  """Returns the group of each place, then of each spare; groups are (zone, size).

  Places get nodes of the `wanted` region; `regions` are those of the groups.
  """
  zones = np.array([zone for zone, _ in groups])
  left = np.array([size for _, size in groups])
  near, shared = _conflicts(partitions, left.sum(), has_replicas)
  region_of_group = np.array(regions)
  chosen: list[int] = []
  for place in range(sum(p.num_stages for p in partitions)):
    here = np.array(chosen, int)
    together = _count(near[place, : len(here)], here, zones) > 0
    beside = _count(shared[place, : len(here)], here, zones)
    free = _count(left, np.arange(len(zones)), zones)
    ranks = np.concatenate([together, beside, -free], axis=1).tolist()
    may = left * (region_of_group == wanted[place])
    chosen.append(int(min(np.flatnonzero(may), key=ranks.__getitem__)))  # The first of equal ones.
    left[chosen[-1]] -= 1
  of_places = np.array([*chosen, *np.repeat(range(len(zones)), left)])
  return _improve(of_places, zones, region_of_group, near, shared)


def _count(values: np.ndarray, groups: np.ndarray, zones: np.ndarray) -> np.ndarray:
  """Returns the sums of values in the zone of each group, and in the group, [group, 2]."""
  by_group = np.bincount(groups, values, len(zones)).astype(int)
  return np.stack([np.bincount(zones, by_group)[zones].astype(int), by_group], axis=1)


def _conflicts(
    partitions: Partitions, num_nodes: int, has_replicas: bool
) -> tuple[np.ndarray, np.ndarray]:
  """Returns for each pair of places whether they are neighbours, and the parts both hold."""
  num_places = sum(p.num_stages for p in partitions)
  near, shared = np.zeros((2, num_nodes, num_nodes), int)
  holders: list[set[base.NodeId]] = [set() for _ in range(partitions[0].num_layers)]
  for pipeline in make_pipelines(partitions, base.nodes(num_places), has_replicas):
    for stage, owner in base.by_stage(pipeline.roles.owners):
      shadow = pipeline.roles.shadows.get(stage, owner)
      near[owner, shadow] = near[shadow, owner] = owner != shadow
      for layer in pipeline.partition.layers(stage):
        holders[layer] |= {owner, shadow}
  for places in {*map(frozenset, holders)}:
    for one, other in itertools.permutations(places, 2):
      shared[one, other] += 1
  return near, shared


def _improve(
    groups: np.ndarray, zones: np.ndarray, regions: np.ndarray, near: np.ndarray, shared: np.ndarray
) -> tuple[int, ...]:
  """Returns the groups after all swaps of two nodes of a region that resolve conflicts."""
  weights = _APART * near + shared
  several = len(weights) ** 2 * int(weights.max(initial=1))  # A zone outweighs all hosts.
  while True:
    gains = np.zeros_like(weights)
    for labels, weight in ((zones[groups], several), (groups, 1)):
      gains += weight * _find_gains(labels, weights)
    gains *= regions[groups][:, None] == regions[groups]
    one, other = np.unravel_index(gains.argmax(), gains.shape)
    if gains[one, other] <= 0:
      return tuple(map(int, groups))
    groups[[one, other]] = groups[[other, one]]


def _find_gains(labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Returns by how much each swap of two labels lessens the weights of pairs of one label."""
  cost = weights @ (labels[:, None] == np.arange(labels.max() + 1))
  own, others = cost[np.arange(len(labels)), labels], cost[:, labels]
  gain = own[:, None] + own - others - others.T + 2 * weights
  return np.where(labels[:, None] == labels, 0, gain)


def divide(
    partitions: Partitions, regions: Sequence[str], exchanged: np.ndarray
) -> list[tuple[str, ...]]:
  """Returns regions of places, then of spares; the ones between which least crosses first.

  Either whole pipelines stay in a region, and sums cross, or all pipelines are cut at
  about the same layer, and activations cross. From both pairs of places change regions
  as long as less crosses.

  Args:
    regions: That of each node.
    exchanged: What each two places send each other.
  """
  places = [(d, p.bounds[s]) for d, p in enumerate(partitions) for s in range(p.num_stages)]
  weights = np.zeros((len(regions), len(regions)))
  weights[: len(places), : len(places)] = exchanged + exchanged.T
  names = sorted({*regions}, key=lambda name: (-regions.count(name), name))
  labels = sorted(names.index(name) for name in regions)
  found: dict[tuple[str, ...], float] = {}

  def note(chosen: np.ndarray) -> None:
    within = weights[chosen[:, None] == chosen].sum()
    found.setdefault(tuple(names[label] for label in chosen), within)

  for by_layer, fill in itertools.product((False, True), (labels, labels[::-1])):
    order = sorted(range(len(places)), key=lambda i: places[i][::-1] if by_layer else places[i])
    chosen = np.empty(len(labels), int)
    chosen[[*order, *range(len(places), len(labels))]] = fill
    note(chosen)
    while True:
      gains = _find_gains(chosen, -weights)
      one, other = np.unravel_index(gains.argmax(), gains.shape)
      if gains[one, other] <= 1e-9 * weights.sum():  # An error of rounding.
        break
      chosen[[one, other]] = chosen[[other, one]]
    note(chosen)
  return sorted(found, key=lambda regions: -found[regions])
