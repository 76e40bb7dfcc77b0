"""Makes the rules by which a cluster changes its layout from a config."""

import ml_collections

from bamboo_jax.plan import planner
from bamboo_jax.plan import predictor as predictor_lib
from bamboo_jax.recovery import assignment as layout_lib
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.recovery import places as places_lib
from bamboo_jax.recovery import planner as planner_lib
from bamboo_jax.recovery import shapes as shapes_lib
from bamboo_jax.recovery import triggers as triggers_lib
from bamboo_jax.train.setup import build


def make_rules(
    config: ml_collections.ConfigDict, plan: planner.Plan
) -> layout_lib.Rules:
  """Returns the rules for a run that starts with `plan`.

  The number of stages and the partition never change; `ValueError` names an
  option that is not allowed.
  """
  options, recovery = config.redundancy, config.recovery
  has_replicas = options.mode != "none"
  num_shares = plan.batch.num_shares
  predicted = predictor_lib.Predictor(
      plan.profile,
      num_microbatches=plan.batch.total_microbatches,
      num_shares=num_shares,
      split="even",
      redundant=build.make_redundancy(config),
  )
  ladder = ladder_lib.Ladder(
      shadow=has_replicas,
      reroute=recovery.reroute,
      reconfigure=recovery.reconfigure,
      checkpoint=recovery.checkpoint,
      fold=recovery.fold,
      hand_over=recovery.hand_over,
      rereplicate=options.rereplicate,
      horizon_secs=recovery.horizon_secs,
  )
  shape = shapes_lib.Depth(
      plan.partition,
      plan.profile,
      has_replicas=has_replicas,
      max_pipelines=num_shares,
      triggers=triggers_lib.Triggers(
          refill=recovery.refill,
          max_doubled=recovery.max_doubled,
          grow=recovery.grow,
      ),
  )
  return layout_lib.Rules(
      partition=plan.partition,
      num_shares=num_shares,
      ladder=ladder,
      planner=planner_lib.Planner(
          shape,
          places_lib.Placer("spread", has_replicas=has_replicas),
          planner_lib.PredictedTimes(predicted),
          fold=ladder.fold,
      ),
  )
