"""The pipeline of `bench_peer`, to compare modes of redundancy.

`bamboo bench` runs all modes in turns, regardless of the config's mode.
"""

import ml_collections

from bamboo_jax.configs import bench_peer


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration of the comparison."""
  config = bench_peer.get_config()
  config.redundancy.mode = "eager"
  return config
