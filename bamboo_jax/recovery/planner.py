"""Plans pipelines and predicts their cost: shapes, places and times.

  shapes  how many pipelines, of how many stages      `shapes`
  places  which node gets which stage at a start      `placement`
  times   how long steps and changes take             `Times`

Clusters predict times from a profile of the model (`PredictedTimes`);
simulations add the other costs of a change.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Protocol

import numpy as np

from bamboo_jax import base
from bamboo_jax.plan import pipelines as pipelines_lib, predictor as predictor_lib
from bamboo_jax.recovery import moves, placement as placement_lib, shapes as shapes_lib

Pipeline = pipelines_lib.Pipeline
Nodes = Sequence[base.NodeId]
Pipelines = tuple[Pipeline, ...]
Zones = Mapping[base.NodeId, str]
Arrange = Callable[[shapes_lib.Partitions, Nodes, Zones], Nodes]


class Times(Protocol):
  """Durations of steps and pauses; pure."""

  def step_secs(self, pipelines: Sequence[Pipeline]) -> float:
    """Returns the time per batch.

    If samples are dropped, it is the time until a whole batch has been trained
    on.
    """

  def pause_secs(self, rung: str, before: Sequence[Pipeline], after: Sequence[Pipeline]) -> float:
    """Returns the pause of training for a change between two steps."""


@dataclasses.dataclass(frozen=True)
class PredictedTimes:
  """Predicted steps, and pauses for copies of state."""

  predictor: predictor_lib.Predictor

  def step_secs(self, pipelines: Sequence[Pipeline]) -> float:
    """Returns the time of a step of the pipelines without vacant stages."""
    return self.predictor.predict(pipelines).total_ms / 1e3

  def pause_secs(self, rung: str, before: Sequence[Pipeline], after: Sequence[Pipeline]) -> float:
    """Returns the time of the copies; all nodes of `before` can send."""
    if rung == "checkpoint":
      return 0.0
    return moves.copy_secs(self.predictor.profile, before, after)


class Planner:
  """Plans pipelines; caches results that depend only on the number of nodes.

  Args:
    fold: Whether nodes own several stages of one pipeline if there are too few
      for a whole one.
    arrange: Returns the node of each new place, then the rest; by default
      `placement.arrange`.
    is_strict: Whether pipelines in which a node owns several stages are replaced even
      by slower ones, so that all nodes find a place.
  """

  def __init__(
      self,
      shapes: shapes_lib.Shapes,
      times: Times,
      *,
      fold: bool,
      arrange: Arrange | None = None,
      is_strict: bool = False,
  ) -> None:
    self._is_strict = is_strict
    self._shapes = shapes
    self._arrange = arrange or functools.partial(
        placement_lib.arrange, has_replicas=shapes.has_replicas
    )
    self.times = times
    self._fold = fold
    self.partitions = functools.cache(self.partitions)
    self.best_secs = functools.cache(self.best_secs)

  def partitions(self, num_nodes: int) -> shapes_lib.Partitions:
    """Returns the partition of each new pipeline of `num_nodes` nodes.

    Raises `base.InfeasibleError` if there are too few nodes for one.
    """
    try:
      return self._shapes.partitions(num_nodes)
    except base.InfeasibleError:
      if self._fold and num_nodes:
        return (self._shapes.smallest,)
      raise

  def fresh(self, nodes: Nodes, zones: Zones) -> Pipelines:
    """Returns pipelines of some of `nodes`, for a start from a checkpoint.

    Raises `base.InfeasibleError` if there are too few nodes for one pipeline.
    """
    if self._must_fold(len(nodes)):
      return self._folded((), nodes)
    partitions = self.partitions(len(nodes))
    order = self._arrange(partitions, nodes, zones)
    return placement_lib.make_pipelines(partitions, order, self._shapes.has_replicas)

  def adapt(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> Pipelines:
    """Returns pipelines to continue with after nodes were lost or joined.

    Nodes of `pipelines` that are not in `nodes` are lost; spares are used in the order
    of `nodes`. `decide` checks whether they are better than `pipelines`.

    Raises:
      base.InfeasibleError: There are too few nodes for one pipeline, or none of
        them has a copy of some layer.
    """
    if not self._must_fold(len(nodes)):
      return self._shapes.adapt(pipelines, nodes)
    # Nothing has changed.
    if len(pipelines) == 1 and {*nodes} == {*pipelines[0].nodes}:
      return tuple(pipelines)
    return self._folded(pipelines, nodes)

  def may_stay(self, pipelines: Sequence[Pipeline]) -> bool:
    """Returns whether pipelines are kept if new ones are no faster."""
    return not self._is_strict or all(len(p.nodes) == p.partition.num_stages for p in pipelines)

  def best_secs(self, num_nodes: int) -> float:
    """Returns the time of a step of `fresh`, whichever the nodes are."""
    nodes = base.nodes(-num_nodes, 0)  # Of no region.
    return self.times.step_secs(self.fresh(nodes, {}))

  def _must_fold(self, num_nodes: int) -> bool:
    if not self._fold:
      return False
    return num_nodes < sum(p.num_stages for p in self.partitions(num_nodes))

  def _folded(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> Pipelines:
    """Returns one pipeline in which each node owns consecutive stages.

    It is slow, but training continues. Nodes get the places for which they lack
    the fewest layers.
    """
    partition = self._shapes.smallest
    num_stages = partition.num_stages
    count = min(len(nodes), num_stages)
    bounds = [i * num_stages // count for i in range(count + 1)]
    runs = [base.stages(*ends) for ends in itertools.pairwise(bounds)]
    wanted = [{l for s in run for l in partition.layers(s)} for run in runs]
    held = moves.held_layers(pipelines)
    missing = np.array([[len(want - held.get(n, frozenset())) for want in wanted] for n in nodes])
    rows, columns = moves.load_solver()(missing)
    node_of = {c: nodes[r] for r, c in zip(rows, columns, strict=True)}
    owners = [node_of[i] for i, run in enumerate(runs) for _ in run]
    return placement_lib.make_pipelines((partition,), owners, self._shapes.has_replicas)
