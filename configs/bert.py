"""BERT as Bamboo trains it: masked tokens and pairs of texts.

Batch, optimizer and dropout are those of Devlin et al., 2019, appendix A.2: 256
samples of 128 tokens; the learning rate falls by a cosine instead of a line.
See `configs/text_model.py`.
"""

import ml_collections

from configs import text_model


def get_config(variant: str = "large") -> ml_collections.ConfigDict:
  """Returns the configuration; `variant` is one of `models.bert.VARIANTS`."""
  config = text_model.get_config("bert", variant)
  config.optimizer.options = dict(b1=0.9, b2=0.999, weight_decay=0.01)
  if variant != "tiny":
    config.pipeline.microbatch_size = 4
  text_model.set_learning_rate(config, 1e-4, warmup=10_000, steps=1_000_000)
  return config
