"""Assigns nodes to the places of new pipelines, by the methods of published systems."""

from collections.abc import Sequence
import dataclasses
import random

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.recovery import placement


@dataclasses.dataclass(frozen=True)
class Placer:
  """Assigns nodes by `config.study.placement`; the seed is for "random"."""

  method: str
  has_replicas: bool
  seed: int = 0

  @property
  def heeds_zones(self) -> bool:
    """Whether places depend on zones."""
    return self.method in ("cluster", "spread")

  def arrange(
      self,
      partitions: Sequence[partition_lib.Partition],
      nodes: Sequence[base.NodeId],
      zones: placement.Zones,
  ) -> Sequence[base.NodeId]:
    """Returns the node of each place, then those without one; see `placement.arrange`."""
    if self.method == "spread":
      return placement.arrange(partitions, nodes, zones, has_replicas=self.has_replicas)
    if self.method == "random":
      nodes = list(nodes)
      # A text seeds alike in all processes.
      random.Random(f"{self.seed} {nodes}").shuffle(nodes)
    elif self.method == "cluster":
      sizes = {zone: [zones.get(n, "") for n in nodes].count(zone) for zone in zones.values()}
      nodes = sorted(nodes, key=lambda n: (-sizes.get(zones.get(n, ""), 0), zones.get(n, "")))
    return nodes
