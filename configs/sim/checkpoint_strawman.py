"""Checkpoint and restart as Bamboo's authors measured it; 77 % of time lost?

With `--trace=FILE` on a recorded trace, scaled to `num_nodes`; else on drawn
ones, with what `launch.trace fit` finds in Bamboo's trace of p3 instances.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  return config_dict.create(
      experiment="checkpoint_strawman",
      num_nodes=64,  # Slots for nodes.
      num_stages=16,  # Nodes per pipeline.
      samples_per_step=288,
      # Median measured reconfiguration; the same and a mean load on top.
      restart_secs=(73.3, 123.3),
      save_secs=89.0,  # Mean measured asynchronous save.
      boot_secs=180.0,  # Until a new node can train.
      time_scales=(1.0, 0.5, 0.25, 0.125),  # 0.5: everything twice as often.
      generated=dict(
          num_seeds=20,
          hours=11.4,
          hazard_per_node_hour=0.61,
          # Pairs of a number of nodes and its weight.
          bulk_sizes=((1, 39), (2, 13), (3, 15), (4, 7), (5, 1), (6, 4)),
          reacquire_secs=2052.0,
      ),
  )
