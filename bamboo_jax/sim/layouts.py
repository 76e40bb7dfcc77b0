"""Which pipelines a policy makes of a number of nodes.

A layout gives the partitions of new pipelines, and adapts pipelines that there
are. Who gets which place is up to `sim.planner`.
"""

from collections.abc import Sequence
import dataclasses
from typing import Protocol

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.plan import predictor as predictor_lib
from bamboo_jax.recovery import cover as cover_lib
from bamboo_jax.recovery import placement
from bamboo_jax.recovery import planners
from bamboo_jax.recovery import triggers as triggers_lib

Partitions = tuple[partition_lib.Partition, ...]
Pipelines = tuple[pipelines_lib.Pipeline, ...]


class Layout(Protocol):
  """Decides on partitions."""

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns the partition of each pipeline.

    Raises:
      base.InfeasibleError: There are too few nodes for one.
    """

  def adapt(
      self, pipelines: Sequence[pipelines_lib.Pipeline], nodes: Sequence[int]
  ) -> Pipelines:
    """Returns pipelines that follow; see `ladder.Planner`."""


@dataclasses.dataclass(frozen=True)
class DepthLayout:
  """Pipelines of one depth; nodes for which there is none are spares.

  Attributes:
    partition: What each pipeline looks like.
    predictor: Predicts steps.
    max_pipelines: Most pipelines there may be; None does not limit them.
  """

  partition: partition_lib.Partition
  predictor: predictor_lib.Predictor
  max_pipelines: int | None = None

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns as many as there are nodes for; see `Layout`."""
    num_stages = self.partition.num_stages
    num_pipelines = triggers_lib.target_pipelines(
        num_nodes, num_stages=num_stages, max_pipelines=self.max_pipelines
    )
    if not num_pipelines:
      raise base.InfeasibleError(
          f"{num_nodes} nodes are too few for a pipeline of {num_stages}."
      )
    return (self.partition,) * num_pipelines

  def adapt(
      self, pipelines: Sequence[pipelines_lib.Pipeline], nodes: Sequence[int]
  ) -> Pipelines:
    """Returns pipelines that need little copying, as Bamboo does."""
    self.partitions(len(nodes))
    planner = planners.DepthPlanner(
        self.partition, self.predictor, self.max_pipelines
    )
    return planner.adapt(pipelines, nodes, {})


@dataclasses.dataclass(frozen=True)
class TemplateLayout:
  """Pipelines of different depths that use all nodes.

  Attributes:
    planner: Has the templates, and says how old pipelines are adapted.
  """

  planner: planners.TemplatePlanner

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns the best cover of all nodes; see `Layout`."""
    coverer: cover_lib.Coverer = self.planner.coverer
    best = coverer.best(num_nodes)[0]
    return tuple(coverer.templates.of(n).partition for n in best.sizes)

  def adapt(
      self, pipelines: Sequence[pipelines_lib.Pipeline], nodes: Sequence[int]
  ) -> Pipelines:
    """Returns pipelines by the method of the planner."""
    return self.planner.adapt(pipelines, nodes, {})


@dataclasses.dataclass(frozen=True)
class GridLayout:
  """The number of pipelines and their depth that make the fastest step.

  Varuna (EuroSys'22) plans so at each restart.

  Attributes:
    choices: The partition for each depth that may be chosen.
    predictor: Predicts steps.
  """

  choices: Partitions
  predictor: predictor_lib.Predictor

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns the fastest; see `Layout`."""
    plans = []
    for partition in self.choices:
      num_pipelines = min(
          num_nodes // partition.num_stages, self.predictor.num_microbatches
      )
      if num_pipelines:
        pipelines = _in_order((partition,) * num_pipelines)
        total_ms = self.predictor.predict(pipelines).total_ms
        plans.append(
            (total_ms, -partition.num_stages, partition, num_pipelines)
        )
    if not plans:
      least = min(partition.num_stages for partition in self.choices)
      raise base.InfeasibleError(
          f"{num_nodes} nodes are too few for a pipeline of {least}."
      )
    _, _, partition, num_pipelines = min(plans, key=lambda plan: plan[:2])
    return (partition,) * num_pipelines

  def adapt(
      self, pipelines: Sequence[pipelines_lib.Pipeline], nodes: Sequence[int]
  ) -> Pipelines:
    """Returns new pipelines whatever there was before."""
    del pipelines
    return placement.make_pipelines(
        self.partitions(len(nodes)), nodes, has_replicas=False
    )


@dataclasses.dataclass(frozen=True)
class EvenLayout:
  """All nodes in pipelines that are as even as can be, for throughput tables.

  What such a table measured was planned by others, so the stages stand for
  equal parts of the model.

  Attributes:
    num_stages: Least number of nodes of a pipeline.
    has_replicas: Whether stages have shadows.
  """

  num_stages: int
  has_replicas: bool

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns partitions of a model of many layers; see `Layout`."""
    num_pipelines = num_nodes // self.num_stages
    if not num_pipelines:
      raise base.InfeasibleError(
          f"{num_nodes} nodes are too few for a pipeline of {self.num_stages}."
      )
    num_layers = 2 * self.num_stages
    each, rest = divmod(num_nodes, num_pipelines)
    return tuple(
        _even_partition(num_layers, each + (i < rest))
        for i in range(num_pipelines)
    )

  def adapt(
      self, pipelines: Sequence[pipelines_lib.Pipeline], nodes: Sequence[int]
  ) -> Pipelines:
    """Returns new pipelines of the nodes in their order."""
    del pipelines
    return placement.make_pipelines(
        self.partitions(len(nodes)), nodes, self.has_replicas
    )


def _even_partition(
    num_layers: int, num_stages: int
) -> partition_lib.Partition:
  return partition_lib.Partition(
      tuple(s * num_layers // num_stages for s in range(num_stages + 1))
  )


def _in_order(partitions: Partitions) -> Pipelines:
  num_places = sum(p.num_stages for p in partitions)
  return placement.make_pipelines(partitions, range(num_places), False)
