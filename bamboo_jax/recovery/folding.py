"""A planner for which no number of nodes is too small.

With fewer nodes than stages, one pipeline is made in which nodes own several
stages that follow each other. It is slow, but nothing has to stand still.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools

import numpy as np
from scipy import optimize

from bamboo_jax import base
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import moves
from bamboo_jax.recovery import planners
from bamboo_jax.schedule import failover

_Pipelines = tuple[pipelines_lib.Pipeline, ...]


@dataclasses.dataclass(frozen=True)
class FoldingPlanner:
  """Makes pipelines of one depth; of few nodes, a folded one.

  Attributes:
    inner: Plans if there are as many nodes as stages.
  """

  inner: planners.DepthPlanner

  def fresh(self, nodes: Sequence[int], zones: Mapping[int, str]) -> _Pipelines:
    """Returns pipelines of `nodes`; see `ladder.Planner`."""
    if self._are_few(nodes):
      return self._fold((), nodes)
    return self.inner.fresh(nodes, zones)

  def adapt(
      self,
      pipelines: Sequence[pipelines_lib.Pipeline],
      nodes: Sequence[int],
      zones: Mapping[int, str],
  ) -> _Pipelines:
    """Returns pipelines of `nodes` that follow `pipelines`."""
    if not self._are_few(nodes):
      return self.inner.adapt(pipelines, nodes, zones)
    training = {node for p in pipelines for node in p.nodes}
    if len(pipelines) == 1 and training == {*nodes}:
      return tuple(pipelines)
    return self._fold(pipelines, nodes)

  def step_secs(self, pipelines: Sequence[pipelines_lib.Pipeline]) -> float:
    """Returns the time of a step."""
    return self.inner.step_secs(pipelines)

  def pause_secs(
      self,
      rung: str,
      before: Sequence[pipelines_lib.Pipeline],
      after: Sequence[pipelines_lib.Pipeline],
  ) -> float:
    """Returns the time of the change; see `ladder.Planner`."""
    return self.inner.pause_secs(rung, before, after)

  def _are_few(self, nodes: Sequence[int]) -> bool:
    if not nodes:
      raise base.InfeasibleError("There is no node left.")
    return len(nodes) < self.inner.partition.num_stages

  def _fold(
      self, before: Sequence[pipelines_lib.Pipeline], nodes: Sequence[int]
  ) -> _Pipelines:
    """Returns one pipeline of all nodes, with little to copy."""
    partition, nodes = self.inner.partition, sorted(nodes)
    num_stages, count = partition.num_stages, len(nodes)
    bounds = [i * num_stages // count for i in range(count + 1)]
    runs = [range(*ends) for ends in itertools.pairwise(bounds)]
    held = moves.held_layers(before)
    cost = np.array(
        [
            [
                len(
                    {l for s in run for l in partition.layers(s)}
                    - held.get(node, frozenset())
                )
                for run in runs
            ]
            for node in nodes
        ]
    )
    rows, columns = optimize.linear_sum_assignment(cost)
    node_of = {c: nodes[r] for r, c in zip(rows, columns, strict=True)}
    owners = tuple(node_of[i] for i, run in enumerate(runs) for _ in run)
    roles = failover.Roles(owners)
    if self.inner.predictor.has_replicas:
      roles = failover.Roles.initial(owners)
    return (pipelines_lib.Pipeline(partition, roles),)
