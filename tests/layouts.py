"""Rules of clusters whose stages are all alike, one layer each."""

from bamboo_jax.plan import cost_model
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import predictor
from bamboo_jax.recovery import assignment
from bamboo_jax.recovery import folding
from bamboo_jax.recovery import ladder
from bamboo_jax.recovery import planners


def make_profile(num_layers):
  """Returns the costs of so many equal layers."""
  layer = dict(
      forward_ms=1.0,
      backward_ms=2.0,
      update_ms=0.1,
      parameter_bytes=1024,
      slot_bytes=2048,
      activation_bytes=64,
      residual_bytes=64,
  )
  return cost_model.Profile(
      layers=tuple(
          cost_model.LayerCost(name=f"layer_{i}", **layer)
          for i in range(num_layers)
      ),
      link_latency_ms=0.1,
      link_bytes_per_ms=1024.0,
      reduce_latency_ms=0.0,
      reduce_bytes_per_ms=1e9,
      dispatch_ms=0.0,
      measured=True,
      fingerprint={},
  )


def make_planner(num_stages, num_shares, *, mode="lazy"):
  """Returns the planner of clusters."""
  partition = partition_lib.Partition(tuple(range(num_stages + 1)))
  predicted = predictor.Predictor(
      make_profile(num_stages),
      num_microbatches=4 * num_shares,
      num_shares=num_shares,
      split="even",
      mode=mode,
  )
  return folding.FoldingPlanner(
      planners.DepthPlanner(partition, predicted, max_pipelines=num_shares)
  )


def make_rules(num_stages, num_shares, *, mode="lazy", **rungs):
  """Returns rules for pipelines of so many stages, at most one per share."""
  planner = make_planner(num_stages, num_shares, mode=mode)
  return assignment.Rules(
      partition=planner.inner.partition,
      num_shares=num_shares,
      ladder=ladder.Ladder(shadow=mode != "none", **rungs),
      planner=planner,
  )
