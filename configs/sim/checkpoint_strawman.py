"""Checkpoint and restart as measured by Bamboo's authors (77 % of time lost).

Our simulator with the times of the run in the artifact's history: pipelines of
16 nodes, the rest idle; a save begins when the last one is done; a loss in a
pipeline, or enough nodes for another pipeline, restarts everything: the policy
`checkpoint`. With `--trace=FILE --nodes=64` on a recorded trace; else on generated
ones, with rates and bulks as in Bamboo's trace of p3 instances.
"""

import ml_collections

from bamboo_jax.configs.sim import compare


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = compare.get_config()
  config.pipeline.num_stages = 16
  config.study.table.update(
      file="third_party/published/bamboo_checkpoint_baseline.csv",
      column="samples_per_s",
      rows="quantity=iteration (median; batch 288)",
      samples_per_step=288.0,
  )
  config.study.durations.update(
      boot_secs=180.0,  # Until a new node can train.
      detect_secs=0.0,
      restart_secs=73.3,  # Median measured; 123.3 with the mean time of a load.
      load_secs=0.0,
      save_secs=89.0,  # Mean measured asynchronous save.
      stall_secs=0.0,
      save_every_secs=89.0,
  )
  config.study.max_pipelines = 4  # The most measured.
  config.recovery.horizon_secs = 1e9  # Any change pays.
  config.study.trace.update(
      nodes_per_zone=(64,),
      hours=11.4,
      hazard_per_node_hour=0.61,
      bulk_sizes=((1, 39), (2, 13), (3, 15), (4, 7), (5, 1), (6, 4)),
      zone_correlation=0.0,
      reacquire_secs=2052.0,
  )
  return config
