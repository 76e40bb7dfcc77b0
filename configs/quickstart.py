"""A small GPT on the text of Python itself: 2 pipelines of 4 stages.

Runs on 2 cores in minutes; each of the 8 nodes, and of 2 spare ones, is a
virtual device. With one stage no other node can hold a replica, so that needs
`--config.redundancy.mode=none`.
"""

import ml_collections

from bamboo_jax.configs import default


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration of the quickstart."""
  config = default.get_config()
  config.num_steps = 40
  config.model.options = dict(
      variant="tiny",
      vocab_size=256,
      sequence_length=64,
      num_blocks=3,
      width=128,
      num_heads=4,
      dropout_rate=0.1,
  )
  config.pipeline.num_microbatches = 4
  config.pipeline.microbatch_size = 4
  config.redundancy.mode = "eager"  # To show passes; `bubble` costs less.
  config.redundancy.spares = 2
  config.optimizer.learning_rate = 3e-3
  config.optimizer.schedule_options.warmup_steps = 10
  config.evaluate.every_steps = 20
  config.evaluate.num_microbatches = 4
  config.checkpoint.every_steps = 10
  return config
