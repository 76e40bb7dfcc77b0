"""Rules of clusters whose stages are all alike, one layer each."""

from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import predictor as predictor_lib
from bamboo_jax.plan import rows
from bamboo_jax.recovery import assignment as layout_lib
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.recovery import places as places_lib
from bamboo_jax.recovery import planner
from bamboo_jax.recovery import shapes as shapes_lib
from tests import profiles


def make_profile(num_layers, *, layer_secs=0.001):
  """Returns the costs of so many equal layers."""
  layer = dict(
      forward_ms=1e3 * layer_secs,
      backward_ms=2e3 * layer_secs,
      update_ms=0.1,
      parameter_bytes=1024,
      slot_bytes=2048,
      activation_bytes=64,
      residual_bytes=64,
  )
  layers = [
      profiles.make_layer(f"layer_{i}", **layer) for i in range(num_layers)
  ]
  return profiles.make_profile(
      layers,
      link_latency_ms=0.1,
      link_bytes_per_ms=1024.0,
      reduce_bytes_per_ms=1e9,
  )


def make_rules(
    num_stages, num_shares, *, mode="lazy", layer_secs=0.001, **rungs
):
  """Returns rules for pipelines of so many stages, at most one per share."""
  partition = partition_lib.Partition(tuple(range(num_stages + 1)))
  predicted = predictor_lib.Predictor(
      make_profile(num_stages, layer_secs=layer_secs),
      num_microbatches=4 * num_shares,
      num_shares=num_shares,
      split="even",
      redundant=rows.Redundancy(mode),
  )
  has_replicas = mode != "none"
  ladder = ladder_lib.Ladder(shadow=has_replicas, **rungs)
  shape = shapes_lib.Depth(
      partition,
      predicted.profile,
      has_replicas=has_replicas,
      max_pipelines=num_shares,
  )
  return layout_lib.Rules(
      partition=partition,
      num_shares=num_shares,
      ladder=ladder,
      planner=planner.Planner(
          shape,
          places_lib.Placer("spread", has_replicas=has_replicas),
          planner.PredictedTimes(predicted),
          fold=ladder.fold,
      ),
  )
