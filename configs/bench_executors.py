"""The pipeline of `bench_peer`, to compare executors.

`bamboo ablate --interleave` runs both in turns, with and without redundancy.
"""

import ml_collections

from bamboo_jax.configs import bench_peer


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration of the comparison."""
  config = bench_peer.get_config()
  config.pipeline.executor = "spmd"
  config.redundancy.mode = "eager"
  return config
