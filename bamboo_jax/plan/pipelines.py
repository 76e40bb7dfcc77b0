"""A pipeline of live nodes: owners and shadows of its stages."""

from collections.abc import Mapping
import dataclasses
import functools

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.schedule import failover


@dataclasses.dataclass(frozen=True)
class Pipeline:
  """One pipeline.

  Attributes:
    vacant: Stages without a live owner here; `roles` names the last one. Owners
      of the same stage in other pipelines compute for it, or the samples of the
      pipeline are dropped.
  """

  partition: partition_lib.Partition
  roles: failover.Roles
  vacant: frozenset[base.StageId] = frozenset()

  @functools.cached_property
  def nodes(self) -> tuple[base.NodeId, ...]:
    """The live nodes, by their first stage."""
    return tuple(
        dict.fromkeys(
            owner for stage, owner in base.by_stage(self.roles.owners) if stage not in self.vacant
        )
    )

  def renumbered(self, numbers: Mapping[base.NodeId, base.NodeId] | None = None) -> "Pipeline":
    """Returns the pipeline with node `n` renamed to `numbers[n]`, see `Roles.renumbered`."""
    return dataclasses.replace(self, roles=self.roles.renumbered(numbers))

  def by_segment(self, segments: partition_lib.Partition) -> failover.Roles:
    """Returns the roles by segment; each has the owner and shadow of its stage."""
    if segments == self.partition:
      return self.roles
    assert {*self.partition.bounds} <= {*segments.bounds}, (self.partition, segments)
    stages = [self.partition.stage_of(first) for first in segments.bounds[:-1]]
    owners, shadows = self.roles.owners, self.roles.shadows
    return failover.Roles(
        tuple(owners[stage] for stage in stages),
        {i: shadows[stage] for i, stage in base.by_stage(stages) if stage in shadows},
    )

  @functools.cached_property
  def shape(self) -> "Pipeline":
    """The pipeline with its nodes as new ones, in order; those of one shape cost the same."""
    return self.renumbered()
