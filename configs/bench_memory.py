"""A small pipeline of 3 stages, to compare predicted and measured memory.

`bamboo_jax.benchmarks.memory` measures all modes of redundancy, regardless of
the config's mode.
"""

import ml_collections

from bamboo_jax.configs import bench_peer


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration of the comparison."""
  config = bench_peer.get_config()
  config.model.options.vocab_size = 2048
  config.model.options.num_blocks = 4
  config.pipeline.num_stages = 3
  config.pipeline.num_microbatches = 4
  config.redundancy.mode = "eager"
  config.plan.memory_limit_gib = 1.0
  return config
