"""From 4 to 16 nodes, which die one after the other.

For `bamboo_jax.benchmarks.shape`: nodes emulate slower machines, so 2 cores suffice.
"""

import ml_collections

from bamboo_jax.configs import paced


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration; `spares` are the nodes above 4."""
  config = paced.get_config("2x2")
  config.model.options.num_blocks = 6
  config.model.options.backward_ms = 15.0
  config.model.options.forward_ms = 7.5
  config.pipeline.layout = "templates"
  config.pipeline.num_microbatches = 32
  config.pipeline.num_shares = 64
  config.redundancy.spares = 12
  config.redundancy.check_every_steps = 0
  config.metrics.plots = False
  return config
