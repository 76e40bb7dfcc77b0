"""Rules of clusters whose stages are all alike, one layer each."""

from collections.abc import Sequence
from typing import Any

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import cost_model, partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.recovery import assignment, decide, layout as layout_lib
from bamboo_jax.schedule import failover
from bamboo_jax.training.setup import build
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


def nodes(digits: str) -> tuple[base.NodeId, ...]:
  """Returns nodes, of which each is written as a digit."""
  return tuple(base.NodeId(int(digit)) for digit in digits)


def owners(pipelines: Sequence[pipelines_lib.Pipeline]) -> list[str]:
  """Returns the owners of the stages of each pipeline, as digits."""
  return ["".join(map(str, p.roles.owners)) for p in pipelines]


def make_pipelines(roles: Sequence[failover.Roles]) -> tuple[pipelines_lib.Pipeline, ...]:
  """Returns pipelines of one layer per stage, by their roles."""
  partition = partition_lib.Partition(tuple(range(roles[0].num_stages + 1)))
  return tuple(pipelines_lib.Pipeline(partition, r) for r in roles)


def make_layout(roles: Sequence[failover.Roles], shares: layout_lib.Shares) -> layout_lib.Layout:
  """Returns the layout of such pipelines."""
  pipelines = make_pipelines(roles)
  return layout_lib.Layout(pipelines, shares, pipelines[0].partition.bounds)


def lay_out(*rows: tuple[int, ...], shares: layout_lib.Shares | None = None) -> layout_lib.Layout:
  """Returns the layout of pipelines without replicas, by their owners; each has one share."""
  roles = [failover.Roles(tuple(map(base.NodeId, row))) for row in rows]
  own = tuple((base.ShareId(i),) for i in range(len(rows)))
  return make_layout(roles, own if shares is None else shares)


def make_ladder(
    *, has_replicas: bool = True, reroute: str = "shares", **options: Any
) -> decide.Ladder:
  """Returns a ladder with other `options`."""
  return decide.Ladder(config_lib.RecoverySection(**options), has_replicas, reroute)


def make_rules(
    num_stages: int,
    num_shares: int,
    *,
    num_layers: int | None = None,
    mode: str = "lazy",
    layer_secs: float = 0.001,
    split: str = "even",
    per_share: int = 4,
    layout: str = "depth",
    reroute: str = "shares",
    **recovery: Any,
) -> assignment.RecoveryRules:
  """Returns the rules of a run with pipelines of so many stages, at most one per share.

  With the `split` "makespan" shares are dealt so that all finish together.
  """
  num_pipelines = num_shares if split == "even" else 1
  config = config_lib.Config().changed(
      {
          "pipeline.executor": "spmd" if reroute == "whole_shares" else "rows",
          "pipeline.layout": layout,
          "pipeline.microbatch_size": 1,
          "pipeline.num_microbatches": num_shares * per_share // num_pipelines,
          "pipeline.num_pipelines": num_pipelines,
          "pipeline.num_shares": num_shares,
          "pipeline.num_stages": num_stages,
          "recovery.reroute": reroute != "none",
          "redundancy.mode": mode,
          **{f"recovery.{name}": value for name, value in recovery.items()},
      }
  )
  profile = make_profile(num_layers or num_stages, layer_secs=layer_secs)
  templates = build.make_templates(config, profile)
  plan = build.make_plan(
      config, profile, num_stages=templates[0].partition.num_stages if templates else None
  )
  return build.make_rules(config, plan, templates)
