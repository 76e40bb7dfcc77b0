"""Shapes of pipelines for a number of nodes, and how they follow others.

  Depth      Bamboo's (NSDI'23): of one depth; the other nodes are spares
  Templates  Oobleck's (SOSP'23): of many depths, so that no node idles
  Grid       Varuna's (EuroSys'22): the fastest number and depth, at each start
  Even       all nodes, as evenly as can be, for tables of throughput

`fold` makes one pipeline of fewer nodes than stages. If there were pipelines
before, nodes get the places that need the fewest copies (`moves`); otherwise
see `places`.
"""

from collections.abc import Sequence
import dataclasses
import itertools
from typing import Protocol

import numpy as np

from bamboo_jax import base, config
from bamboo_jax.plan import cost_model, partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.plan.times import predictor as predictor_lib
from bamboo_jax.recovery import moves, placement as placement_lib, triggers
from bamboo_jax.recovery.oobleck import cover as cover_lib, regroup
from bamboo_jax.schedule import failover

Pipeline = pipelines_lib.Pipeline
Nodes = Sequence[base.NodeId]
Partitions = tuple[partition_lib.Partition, ...]
Pipelines = tuple[Pipeline, ...]

METHODS = ("rules", "replanning")
GRID_DEPTHS = (0.5, 0.75, 1.0, 1.25, 1.5)  # Multiples of the number of stages.


class Shapes(Protocol):
  """Decides number and partitions of pipelines; pure."""

  @property
  def has_replicas(self) -> bool:
    """Whether the stages of new pipelines have shadows."""

  @property
  def smallest(self) -> partition_lib.Partition:
    """The partition of the pipeline with the fewest nodes."""

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns the partition of each new pipeline.

    Raises `base.InfeasibleError` if there are too few nodes.
    """

  def adapt(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> Pipelines:
    """Returns pipelines of some of `nodes` that replace `pipelines`.

    Nodes of `pipelines` that are not in `nodes` are lost; spares are used in
    the order of `nodes`.

    Raises:
      base.InfeasibleError: There are too few nodes, or none has a copy of some
        layer.
    """


@dataclasses.dataclass(frozen=True)
class Depth:
  """The largest number of pipelines of one depth.

  Attributes:
    profile: Costs of layers; None if unknown, then nodes stay in their order.
    max_pipelines: Largest number of pipelines; None: no limit.
    options: Complete pipelines are changed only if one of its triggers fires.
  """

  partition: partition_lib.Partition
  profile: cost_model.Profile | None = None
  has_replicas: bool = False
  max_pipelines: int | None = None
  options: config.RecoverySection = config.RecoverySection()

  @property
  def smallest(self) -> partition_lib.Partition:
    """The partition of every pipeline."""
    return self.partition

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns the partition of each pipeline; see `Shapes`."""
    return (self.partition,) * _count(num_nodes, self.partition.num_stages, self.max_pipelines)

  def adapt(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> Pipelines:
    """See `Shapes`; returns `pipelines` themselves if no trigger fires."""
    partitions = self.partitions(len(nodes))
    training = {node for p in pipelines for node in p.nodes}
    if training <= {*nodes} and not triggers.fire(
        self.options,
        pipelines,
        num_spares=len(nodes) - len(training),
        most_pipelines=len(partitions),
    ):
      return tuple(pipelines)
    if self.profile is None:
      return placement_lib.make_pipelines(partitions, nodes, self.has_replicas)
    _check_copies(self.profile, pipelines, nodes)
    return moves.assign_nodes(
        *(self.profile, pipelines, partitions, nodes), has_replicas=self.has_replicas
    )


@dataclasses.dataclass(frozen=True)
class TemplateShapes:
  """Pipelines of different depths that use all nodes.

  Attributes:
    method: How pipelines replace others: by Oobleck's "rules" (section 5: keep,
      borrow, merge), or by "replanning": among the fastest covers of all nodes
      the one that moves the fewest bytes, then nodes.
    use_all: Whether all nodes are used, as in Oobleck, even if fewer were
      faster; "rules" always use all.
  """

  coverer: cover_lib.Coverer
  method: str = "replanning"
  use_all: bool = True

  def __post_init__(self) -> None:
    if self.method not in METHODS:
      raise ValueError(base.suggest(self.method, METHODS, what="method"))

  @property
  def has_replicas(self) -> bool:
    """Whether stages have shadows."""
    return self.coverer.predictor.has_replicas

  @property
  def smallest(self) -> partition_lib.Partition:
    """The template of n0 nodes."""
    return self.coverer.templates.templates[0].partition

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns the best cover of all nodes."""
    return self._of(self._covers(num_nodes)[0].sizes)

  def adapt(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> Pipelines:
    """See `Shapes`; by `method`."""
    predictor = self.coverer.predictor
    if self.method == "rules":
      plans = [[(self._of([len(g)]), g) for g in self._groups(pipelines, nodes)]]
    else:
      covers = self._covers(len(nodes))
      plans = [[(self._of(c.sizes), nodes)] for c in covers]
    _check_copies(predictor.profile, pipelines, nodes)
    choices = []
    for plan in plans:
      made = [
          moves.assign_nodes(
              predictor.profile, pipelines, partitions, group, has_replicas=self.has_replicas
          )
          for partitions, group in plan
      ]
      choices.append(tuple(itertools.chain.from_iterable(made)))
    if len(choices) == 1:
      return choices[0]
    return min(choices, key=lambda after: self._cost(pipelines, after, nodes))

  def _covers(self, num_nodes: int) -> tuple[cover_lib.Cover, ...]:
    if self.use_all or self.method == "rules":
      return self.coverer.best(self.coverer.most_used(num_nodes))
    return self.coverer.best_of_some(num_nodes)

  def _of(self, sizes: Sequence[int]) -> Partitions:
    return tuple(self.coverer.templates.of(n).partition for n in sizes)

  def _groups(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> regroup.Groups:
    templates, alive = self.coverer.templates, {*nodes}
    left = [tuple(n for n in p.nodes if n in alive) for p in pipelines]
    training = {node for group in left for node in group}
    groups = regroup.regroup(
        left,
        joined=tuple(node for node in nodes if node not in training),
        min_nodes=templates.min_nodes,
        max_nodes=templates.max_nodes,
        min_pipelines=self.coverer.min_pipelines(len(nodes)),
    )
    most = self.coverer.predictor.most_pipelines
    if len(groups) > most:
      raise base.InfeasibleError(f"{len(groups)} pipelines are too many for {most} microbatches.")
    return groups

  def _cost(
      self, before: Sequence[Pipeline], after: Pipelines, nodes: Nodes
  ) -> tuple[float, int, int]:
    """Returns the key to minimise: step time in ms, bytes and nodes moved."""
    predictor = self.coverer.predictor
    copies = moves.plan_layer_copies(predictor.profile, before, after, nodes)
    return (
        predictor.predict(after).total_ms,
        sum(copy.num_bytes for copy in copies),
        moves.count_moved(before, after),
    )


@dataclasses.dataclass(frozen=True)
class Grid:
  """The number of pipelines and their depth with the fastest step.

  Varuna (EuroSys'22) searches this grid by simulation at each start.

  Attributes:
    choices: One partition for each depth.
  """

  choices: Partitions
  predictor: predictor_lib.Predictor

  @property
  def has_replicas(self) -> bool:
    """Whether stages have shadows."""
    return self.predictor.has_replicas

  @property
  def smallest(self) -> partition_lib.Partition:
    """The partition with the fewest stages."""
    return min(self.choices, key=lambda p: p.num_stages)

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns the fastest choice; the deepest among equals.

    It may leave nodes unused, so more nodes are never slower than fewer.
    """
    found = []
    for partition in self.choices:
      for count in self._counts(num_nodes // partition.num_stages):
        pipelines = placement_lib.make_pipelines(
            [partition] * count, base.nodes(count * partition.num_stages), False
        )
        step_ms = self.predictor.predict(pipelines).total_ms
        found.append((step_ms, -partition.num_stages, (partition,) * count))
    if not found:
      _count(num_nodes, self.smallest.num_stages)
    return min(found, key=lambda plan: plan[:2])[-1]

  def _counts(self, most: int) -> list[int]:
    """Returns the numbers of pipelines up to `most` that are worth trying.

    Others give the busiest pipeline as many microbatches as a smaller number.
    """
    total = self.predictor.most_pipelines
    busiest = {-(-total // n) for n in range(1, min(most, total) + 1)}
    return [-(-total // num_microbatches) for num_microbatches in busiest]

  def adapt(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> Pipelines:
    """See `Shapes`; the fastest pipelines, with the fewest bytes copied."""
    profile = self.predictor.profile
    partitions = self.partitions(len(nodes))
    _check_copies(profile, pipelines, nodes)
    return moves.assign_nodes(profile, pipelines, partitions, nodes, has_replicas=self.has_replicas)


@dataclasses.dataclass(frozen=True)
class Even:
  """All nodes, in pipelines of at least `num_stages`, of almost equal size.

  For tables of measured throughput, whose partitions are not known: stages are
  equal parts of the model.
  """

  num_stages: int
  has_replicas: bool

  @property
  def smallest(self) -> partition_lib.Partition:
    """The pipeline of `num_stages` nodes."""
    return self._partition(self.num_stages)

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns partitions of a model of `2 * num_stages` equal layers."""
    num_pipelines = _count(num_nodes, self.num_stages)
    each, rest = divmod(num_nodes, num_pipelines)
    return tuple(self._partition(each + (i < rest)) for i in range(num_pipelines))

  def adapt(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> Pipelines:
    """Returns new pipelines of the nodes in their order."""
    return placement_lib.make_pipelines(self.partitions(len(nodes)), nodes, self.has_replicas)

  def _partition(self, num_nodes: int) -> partition_lib.Partition:
    num_layers = 2 * self.num_stages
    return partition_lib.Partition(tuple(s * num_layers // num_nodes for s in range(num_nodes + 1)))


def fold(
    partition: partition_lib.Partition,
    pipelines: Sequence[Pipeline],
    nodes: Nodes,
    *,
    has_replicas: bool,
) -> Pipelines:
  """Returns one pipeline in which each node owns consecutive stages.

  It is slow, but training continues. Nodes get the places for which they lack
  the fewest layers.
  """
  num_stages = partition.num_stages
  count = min(len(nodes), num_stages)
  bounds = [i * num_stages // count for i in range(count + 1)]
  runs = [base.stages(*ends) for ends in itertools.pairwise(bounds)]
  wanted = [{l for s in run for l in partition.layers(s)} for run in runs]
  held = moves.held_layers(pipelines)
  missing = np.array([[len(want - held.get(n, frozenset())) for want in wanted] for n in nodes])
  rows, columns = moves.load_solver()(missing)
  node_of = {c: nodes[r] for r, c in zip(rows, columns, strict=True)}
  owners = tuple(node_of[i] for i, run in enumerate(runs) for _ in run)
  roles = failover.Roles.initial(owners, has_replicas=has_replicas)
  return (Pipeline(partition, roles),)


def _count(num_nodes: int, num_stages: int, most: int | None = None) -> int:
  count = min(num_nodes // num_stages, num_nodes if most is None else most)
  if not count:
    raise base.InfeasibleError(f"{num_nodes} nodes are too few for a pipeline of {num_stages}.")
  return count


def _check_copies(profile: cost_model.Profile, pipelines: Sequence[Pipeline], nodes: Nodes) -> None:
  if lost := moves.lost_layers(pipelines, nodes):
    raise base.InfeasibleError(f"No live node has a copy of layer {profile.layers[lost[0]].name}.")
