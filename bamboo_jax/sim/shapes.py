"""Pipelines for tables of measured throughput, whose partitions are not known."""

from collections.abc import Sequence
import dataclasses

from bamboo_jax import base, config
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.recovery import placement, shapes as shapes_lib


@dataclasses.dataclass(frozen=True)
class TableShapes:
  """Pipelines whose stages are equal parts of a model; a `recovery.shapes.Shapes`.

  Attributes:
    is_even: Whether all nodes are used, in pipelines of at least `num_stages`, of almost
      equal size; else all pipelines have `num_stages`.
  """

  num_stages: int
  has_replicas: bool
  is_even: bool = True
  max_pipelines: int | None = None

  @property
  def smallest(self) -> partition_lib.Partition:
    """The pipeline of `num_stages` nodes."""
    return self._partition(self.num_stages)

  def partitions(self, num_nodes: int) -> shapes_lib.Partitions:
    """Returns partitions of a model of equal layers, two for each of `num_stages` if even."""
    most = num_nodes if self.is_even else self.max_pipelines or num_nodes
    count = min(num_nodes // self.num_stages, most)
    if not count:
      raise base.InfeasibleError(
          f"{num_nodes} nodes are too few for a pipeline of {self.num_stages}."
      )
    if not self.is_even:
      return (self.smallest,) * count
    each, rest = divmod(num_nodes, count)
    return tuple(self._partition(each + (i < rest)) for i in range(count))

  def adapt(
      self, pipelines: Sequence[shapes_lib.Pipeline], nodes: shapes_lib.Nodes
  ) -> shapes_lib.Pipelines:
    """Returns new pipelines of the nodes in their order."""
    partitions = self.partitions(len(nodes))
    if not self.is_even:
      if not shapes_lib.fires(config.RecoverySection(), pipelines, nodes, most=len(partitions)):
        return tuple(pipelines)
    return placement.make_pipelines(partitions, nodes, self.has_replicas)

  def _partition(self, num_nodes: int) -> partition_lib.Partition:
    num_layers = (1 + self.is_even) * self.num_stages
    return partition_lib.Partition(tuple(s * num_layers // num_nodes for s in range(num_nodes + 1)))
