"""GNMT-16 as Bamboo trains it: 4 pipelines of 4 stages; `:tiny` is small.

Batch, optimizer, clipping and dropout are those of Wu et al., 2016, section 8:
128 pairs of sentences, Adam; there is no second phase with SGD. Bamboo's 1.5
times as many nodes are `--config.pipeline.num_stages=6`.

Pairs are names and docstrings of Python's library, in bytes, until
`--config.data.options.source='wmt16/train*.en'
--config.data.options.target='wmt16/train*.de'
--config.data.options.tokens=bpe --config.data.options.vocab_size=32000` choose
others.
"""

import ml_collections

from configs import default
from configs import image_model


def get_config(variant: str = "16") -> ml_collections.ConfigDict:
  """Returns the configuration; `variant` is one of `models.gnmt.VARIANTS`."""
  config = default.get_config()
  config.model.name = "gnmt"
  config.model.options = dict(
      variant=variant, sequence_length=50, vocab_size=256, dropout_rate=0.3
  )
  config.data.name = "translation"
  config.data.options = dict(heldout_fraction=0.1)
  config.redundancy.mode = "eager"
  config.pipeline.num_pipelines = 4
  config.pipeline.num_stages = 4
  config.pipeline.num_microbatches = 8
  config.pipeline.microbatch_size = 4
  config.plan.memory_limit_gib = 16.0  # Of a V100, as in p3.2xlarge.
  config.optimizer.name = "adam"
  config.optimizer.options = dict()
  config.optimizer.learning_rate = 2e-4
  config.optimizer.clip_norm = 5.0
  config.num_steps = 100_000
  if variant == "tiny":
    image_model.make_tiny(config)
    config.model.options.sequence_length = 32
    config.model.options.dropout_rate = 0.1
    config.optimizer.learning_rate = 1e-2
  config.optimizer.schedule_options.warmup_steps = config.num_steps // 20
  config.optimizer.schedule_options.decay_steps = config.num_steps
  return config
