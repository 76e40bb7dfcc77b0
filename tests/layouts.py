"""Rules of clusters whose stages are all alike, one layer each."""

from collections.abc import Sequence
from typing import Any

from bamboo_jax import config as config_lib
from bamboo_jax.plan import (
    cost_model,
    partition as partition_lib,
    pipelines as pipelines_lib,
    planner as planner_lib,
    rows,
)
from bamboo_jax.plan.times import predictor as predictor_lib
from bamboo_jax.recovery import (
    assignment,
    ladder as ladder_lib,
    layout as layout_lib,
    planner,
    shapes as shapes_lib,
    templates as templates_lib,
)
from bamboo_jax.schedule import failover
from tests import profiles


def make_profile(num_layers: int, *, layer_secs: float = 0.001) -> cost_model.Profile:
  """Returns the costs of equal layers, each with a forward of `layer_secs`."""
  layer = {
      "forward_ms": 1e3 * layer_secs,
      "backward_ms": 2e3 * layer_secs,
      "update_ms": 0.1,
      "parameter_bytes": 1024,
      "slot_bytes": 2048,
      "activation_bytes": 64,
      "residual_bytes": 64,
  }
  layers = [profiles.make_layer(f"layer_{i}", **layer) for i in range(num_layers)]
  return profiles.make_profile(
      layers, link_latency_ms=0.1, link_bytes_per_ms=1024.0, reduce_bytes_per_ms=1e9
  )


def make_pipelines(roles: Sequence[failover.Roles]) -> tuple[pipelines_lib.Pipeline, ...]:
  """Returns pipelines of one layer per stage, by their roles."""
  partition = partition_lib.Partition(tuple(range(roles[0].num_stages + 1)))
  return tuple(pipelines_lib.Pipeline(partition, r) for r in roles)


def make_layout(roles: Sequence[failover.Roles], shares: layout_lib.Shares) -> layout_lib.Layout:
  """Returns the layout of such pipelines."""
  pipelines = make_pipelines(roles)
  return layout_lib.Layout(pipelines, shares, pipelines[0].partition.bounds)


def make_rows(
    profile: cost_model.Profile,
    mode: str,
    *,
    num_stages: int,
    num_pipelines: int = 1,
    num_shares: int,
    per_share: int = 4,
    segments: partition_lib.Partition | None = None,
) -> rows.RowPlanner:
  """Returns the planner of rows of such pipelines."""
  plan = planner_lib.make_plan(
      profile,
      num_stages=num_stages,
      num_pipelines=num_pipelines,
      num_microbatches=num_shares * per_share // num_pipelines,
      num_shares=num_shares,
      microbatch_size=1,
  )
  return rows.RowPlanner(plan, config_lib.RedundancySection(mode), segments)


def make_ladder(
    *, has_replicas: bool = True, reroute: str = "shares", **options: Any
) -> ladder_lib.Ladder:
  """Returns a ladder with other `options`; `reroute` may be "none"."""
  is_on = reroute != "none"
  section = config_lib.RecoverySection(reroute=is_on, **options)
  return ladder_lib.Ladder(section, has_replicas, reroute if is_on else "shares")


def make_rules(
    num_stages: int,
    num_shares: int,
    *,
    mode: str = "lazy",
    layer_secs: float = 0.001,
    split: str = "even",
    per_share: int = 4,
    **rungs,
) -> assignment.RecoveryRules:
  """Returns rules for pipelines of so many stages, at most one per share.

  With the `split` "makespan", shares of `per_share` microbatches are dealt so.
  """
  partition = partition_lib.Partition(tuple(range(num_stages + 1)))
  predicted = predictor_lib.Predictor(
      make_profile(num_stages, layer_secs=layer_secs),
      num_microbatches=per_share * num_shares,
      num_shares=num_shares,
      split=split,
      group=per_share,
      redundant=config_lib.RedundancySection(mode),
  )
  has_replicas = mode != "none"
  ladder = make_ladder(has_replicas=has_replicas, **rungs)
  return assignment.RecoveryRules(
      segments=partition,
      num_shares=num_shares,
      predictor=predicted if split == "makespan" else None,
      rows=make_rows(
          predicted.profile,
          mode,
          num_stages=num_stages,
          num_shares=num_shares,
          per_share=per_share,
          segments=partition,
      ),
      ladder=ladder,
      planner=planner.Planner(
          shapes_lib.Templates((partition,), predicted, ladder.options),
          planner.PredictedTimes(predicted),
          fold=ladder.options.fold,
      ),
  )


def make_template_rules(
    num_layers: int,
    num_shares: int,
    *,
    min_nodes: int = 2,
    mode: str = "lazy",
    method: str = "replanning",
    reroute: str = "shares",
    per_share: int = 4,
    layout: str = "templates",
) -> assignment.RecoveryRules:
  """Returns rules for pipelines of any depth from `min_nodes` on.

  With the `layout` "grid" all have the depth that is fastest.
  """
  predicted = predictor_lib.Predictor(
      make_profile(num_layers),
      num_microbatches=per_share * num_shares,
      num_shares=num_shares,
      group=per_share,
      redundant=config_lib.RedundancySection(mode),
  )
  templates = templates_lib.make_templates(
      predicted.profile.layers,
      num_failures=1,
      min_nodes=min_nodes,
      max_nodes=min(num_layers, 2 * min_nodes - 1),
  )
  partitions = tuple(template.partition for template in templates)
  segments = partition_lib.refine(partitions)
  ladder = make_ladder(has_replicas=mode != "none", reroute=reroute, method=method)
  shape = shapes_lib.Templates(
      partitions,
      predicted,
      ladder.options,
      mixes=layout == "templates",
      uses_all=layout == "templates",
      degrades=True,
  )
  return assignment.RecoveryRules(
      segments=segments,
      num_shares=num_shares,
      predictor=predicted,
      rows=make_rows(
          predicted.profile,
          mode,
          num_stages=min_nodes,
          num_shares=num_shares,
          per_share=per_share,
          segments=segments,
      ),
      ladder=ladder,
      planner=planner.Planner(
          shape, planner.PredictedTimes(predicted), fold=True, is_strict=layout == "templates"
      ),
  )
