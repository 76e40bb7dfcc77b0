"""Partitions for nodes of unequal speeds; pure.

A pipeline runs at the pace of its slowest stage. So the stage of a slow node
gets fewer layers, such that the slowest one is as fast as can be:

  stage (node)   layers usually, time    n1 takes 3 times as long: layers, time
  0 (n0)               4   4                       5   5
  1 (n1)               4   4, now 12               2   6
  2 (n2)               4   4                       5   5

Stages start at segments only, so the bits of a run stay the same.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.plan import cost_model, partition as partition_lib, pipelines as pipelines_lib

Pipelines = tuple[pipelines_lib.Pipeline, ...]


@dataclasses.dataclass(frozen=True)
class Speeds:
  """Partitions of pipelines with slow nodes, and without.

  Attributes:
    segments: Stages start at these layers only.
    partitions: The usual ones, by which pipelines are made.
  """

  profile: cost_model.Profile
  segments: partition_lib.Partition
  partitions: Sequence[partition_lib.Partition]

  def usual(self, pipelines: Pipelines) -> Pipelines:
    """Returns the pipelines as they would be if no node were slow."""
    by_depth = {p.num_stages: p for p in self.partitions}
    return tuple(
        dataclasses.replace(p, partition=by_depth[p.partition.num_stages]) for p in pipelines
    )

  def split(self, pipelines: Pipelines, slow: Mapping[base.NodeId, float]) -> Pipelines:
    """Returns pipelines whose slowest stages are as fast as can be.

    `slow` has the factor by which passes of a node are longer. A node with two
    stages has half the time for each.
    """
    return tuple(self._split(pipeline, slow) for pipeline in pipelines)

  def _split(
      self, pipeline: pipelines_lib.Pipeline, slow: Mapping[base.NodeId, float]
  ) -> pipelines_lib.Pipeline:
    owners = pipeline.roles.owners
    factors = [slow.get(n, 1.0) * owners.count(n) for n in owners]
    if max(factors) == 1:
      return pipeline
    partition = partition_lib.split_layers(
        self.profile.layers, num_stages=len(owners), cuts=self.segments.bounds[1:-1], slow=factors
    )
    return dataclasses.replace(pipeline, partition=partition)
