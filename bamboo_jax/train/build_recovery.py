"""From a config to the rules by which a cluster changes its layout."""

import ml_collections

from bamboo_jax.plan import planner
from bamboo_jax.plan import predictor
from bamboo_jax.recovery import assignment
from bamboo_jax.recovery import folding
from bamboo_jax.recovery import ladder
from bamboo_jax.recovery import planners
from bamboo_jax.recovery import triggers


def make_rules(
    config: ml_collections.ConfigDict, plan: planner.Plan
) -> assignment.Rules:
  """Returns the rules.

  Args:
    config: Of the run.
    plan: Of its start; the number of stages and the partition stay.

  Raises:
    ValueError: A value of `config.recovery` is not allowed.
  """
  options, recovery = config.redundancy, config.recovery
  has_replicas = options.mode != "none"
  num_shares = plan.batch.num_shares
  predicted = predictor.Predictor(
      plan.profile,
      num_microbatches=plan.batch.total_microbatches,
      num_shares=num_shares,
      split="even",
      mode=options.mode,
      refresh=options.refresh if has_replicas else None,
      margin=options.margin,
      budget=options.budget,
  )
  return assignment.Rules(
      partition=plan.partition,
      num_shares=num_shares,
      ladder=ladder.Ladder(
          shadow=has_replicas,
          reroute=recovery.reroute,
          reconfigure=recovery.reconfigure,
          checkpoint=recovery.checkpoint,
          rereplicate=options.rereplicate,
          horizon_secs=recovery.horizon_secs,
      ),
      planner=folding.FoldingPlanner(
          planners.DepthPlanner(
              plan.partition,
              predicted,
              max_pipelines=num_shares,
              triggers=triggers.Triggers(
                  refill=recovery.refill,
                  max_doubled=recovery.max_doubled,
                  grow=recovery.grow,
              ),
          )
      ),
  )
