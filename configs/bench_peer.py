"""A pipeline of 2 stages, one core each, to compare with another system.

8 blocks of width 256, sequence 128, vocabulary 8192, global batch 16 in 8
microbatches, float32.
"""

import ml_collections

from bamboo_jax.configs import default


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration of the comparison."""
  config = default.get_config()
  config.model.options = dict(
      variant="tiny",
      vocab_size=8192,
      sequence_length=128,
      num_blocks=8,
      width=256,
      num_heads=4,
      dropout_rate=0.0,
      tied=False,
      attention_bias=False,
  )
  config.data.name = "synthetic"
  config.pipeline.num_pipelines = 1
  config.pipeline.num_stages = 2
  config.pipeline.num_microbatches = 8
  config.pipeline.microbatch_size = 2
  config.optimizer.schedule = "constant"
  config.optimizer.clip_norm = None
  config.optimizer.options = dict(weight_decay=0.01)
  return config
