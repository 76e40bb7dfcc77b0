"""The small model, with dropout, that `bamboo verify` trains.

Its six blocks make up to six stages; its data needs no files.
"""

import ml_collections

from bamboo_jax.configs import default


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration of the sweep."""
  config = default.get_config()
  config.model.options = dict(
      variant="tiny",
      vocab_size=16,
      sequence_length=8,
      num_blocks=4,
      width=16,
      num_heads=2,
      dropout_rate=0.1,
  )
  config.data.name = "synthetic"
  config.pipeline.num_microbatches = 6  # A batch that 1, 2, 3, 4 or 6 pipelines can share.
  config.pipeline.microbatch_size = 2
  config.optimizer.learning_rate = 1e-2
  config.optimizer.schedule_options.warmup_steps = 2
  config.evaluate.every_steps = 0
  config.redundancy.mode = "eager"
  return config
