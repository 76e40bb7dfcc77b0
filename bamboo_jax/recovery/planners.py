"""Planners of pipelines for the recovery ladder; see `ladder.Planner`.

`TemplatePlanner` plans like Oobleck: pipelines of different depths, and no node
idles. `DepthPlanner` plans like Bamboo: pipelines of one depth, and spares.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.plan import predictor as predictor_lib
from bamboo_jax.recovery import cover as cover_lib
from bamboo_jax.recovery import moves
from bamboo_jax.recovery import placement
from bamboo_jax.recovery import reconfigure
from bamboo_jax.recovery import triggers as triggers_lib

METHODS = ("rules", "replanning")

_Pipelines = tuple[pipelines_lib.Pipeline, ...]


@dataclasses.dataclass(frozen=True)
class TemplatePlanner:
  """Covers all nodes with pipelines from templates.

  Attributes:
    coverer: Has the templates, and predicts steps.
    method: How old pipelines are adapted, by "rules" or by "replanning".
    fixed_secs: For each rung, how long a change takes beside its copies.
  """

  coverer: cover_lib.Coverer
  method: str = "replanning"
  fixed_secs: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    if self.method not in METHODS:
      raise ValueError(base.suggest(self.method, METHODS, what="method"))

  def fresh(self, nodes: Sequence[int], zones: Mapping[int, str]) -> _Pipelines:
    """Returns pipelines of `nodes`; see `ladder.Planner`."""
    best = self.coverer.best(len(nodes))[0]
    partitions = [self.coverer.templates.of(n).partition for n in best.sizes]
    return _place(self.coverer.predictor, partitions, nodes, zones)

  def adapt(
      self,
      pipelines: Sequence[pipelines_lib.Pipeline],
      nodes: Sequence[int],
      zones: Mapping[int, str],
  ) -> _Pipelines:
    """Returns pipelines of `nodes`; zones do not matter then."""
    del zones
    plan = reconfigure.by_replanning
    if self.method == "rules":
      plan = reconfigure.by_rules
    return plan(pipelines, nodes, coverer=self.coverer).pipelines

  def step_secs(self, pipelines: Sequence[pipelines_lib.Pipeline]) -> float:
    """Returns the time of a step; pipelines with vacant stages do not help."""
    return self.coverer.predictor.predict(pipelines).total_ms / 1e3

  def pause_secs(
      self,
      rung: str,
      before: Sequence[pipelines_lib.Pipeline],
      after: Sequence[pipelines_lib.Pipeline],
  ) -> float:
    """Returns the time of the change; see `ladder.Planner`."""
    return _pause_secs(
        self.coverer.predictor, self.fixed_secs, rung, before, after
    )


@dataclasses.dataclass(frozen=True)
class DepthPlanner:
  """Makes as many pipelines of one depth as there are nodes for.

  Attributes:
    partition: What each pipeline looks like.
    predictor: Predicts steps.
    max_pipelines: Most pipelines there may be; None does not limit them.
    triggers: Whole pipelines are left as they are unless one of these fires.
    fixed_secs: For each rung, how long a change takes beside its copies.
  """

  partition: partition_lib.Partition
  predictor: predictor_lib.Predictor
  max_pipelines: int | None = None
  triggers: triggers_lib.Triggers = triggers_lib.Triggers()
  fixed_secs: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def fresh(self, nodes: Sequence[int], zones: Mapping[int, str]) -> _Pipelines:
    """Returns pipelines of `nodes`; see `ladder.Planner`."""
    num_pipelines = triggers_lib.target_pipelines(
        len(nodes),
        num_stages=self.partition.num_stages,
        max_pipelines=self.max_pipelines,
    )
    return _place(
        self.predictor, [self.partition] * num_pipelines, nodes, zones
    )

  def adapt(
      self,
      pipelines: Sequence[pipelines_lib.Pipeline],
      nodes: Sequence[int],
      zones: Mapping[int, str],
  ) -> _Pipelines:
    """Returns pipelines of `nodes`; zones do not matter then."""
    del zones
    training = {node for p in pipelines for node in p.nodes}
    if training <= {*nodes} and not triggers_lib.find_triggers(
        pipelines,
        num_spares=len(nodes) - len(training),
        num_stages=self.partition.num_stages,
        max_pipelines=self.max_pipelines,
        triggers=self.triggers,
    ):
      return tuple(pipelines)
    return reconfigure.by_depth(
        pipelines,
        nodes,
        partition=self.partition,
        predictor=self.predictor,
        max_pipelines=self.max_pipelines,
    ).pipelines

  def step_secs(self, pipelines: Sequence[pipelines_lib.Pipeline]) -> float:
    """Returns the time of a step; pipelines with vacant stages do not help."""
    return self.predictor.predict(pipelines).total_ms / 1e3

  def pause_secs(
      self,
      rung: str,
      before: Sequence[pipelines_lib.Pipeline],
      after: Sequence[pipelines_lib.Pipeline],
  ) -> float:
    """Returns the time of the change; see `ladder.Planner`."""
    return _pause_secs(self.predictor, self.fixed_secs, rung, before, after)


def _place(
    predictor: predictor_lib.Predictor,
    partitions: Sequence[partition_lib.Partition],
    nodes: Sequence[int],
    zones: Mapping[int, str],
) -> _Pipelines:
  """Returns pipelines of any of `nodes` that survive most."""
  return placement.place_nodes(
      {node: zones.get(node, f"node {node}") for node in nodes},
      partitions,
      has_replicas=predictor.has_replicas,
  ).pipelines


def _pause_secs(
    predictor: predictor_lib.Predictor,
    fixed_secs: Mapping[str, float],
    rung: str,
    before: Sequence[pipelines_lib.Pipeline],
    after: Sequence[pipelines_lib.Pipeline],
) -> float:
  """Returns how long a change takes; all nodes of `before` can send."""
  pause_secs = fixed_secs.get(rung, 0.0)
  if rung == "checkpoint" or not before:
    return pause_secs
  nodes = {node for p in (*before, *after) for node in p.nodes}
  move = moves.plan_move(predictor.profile, before, after, nodes)
  return pause_secs + move.transfer_ms(predictor.profile) / 1e3
