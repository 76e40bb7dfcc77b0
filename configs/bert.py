"""BERT as Bamboo trains it: masked tokens and pairs of texts.

Batch, optimizer and dropout are those of Devlin et al., 2019, appendix A.2: 256
samples of 128 tokens; the learning rate has cosine instead of linear decay.
Norms and biases have no weight decay, as in `optimization.py` of that paper's
code; embeddings have. See `configs/zoo.py`.
"""

import ml_collections

from bamboo_jax.configs import zoo


def get_config(variant: str = "large") -> ml_collections.ConfigDict:
  """Returns the configuration of a variant of `models.text.bert`."""
  config = zoo.get_config("bert", variant)
  config.optimizer.options = dict(b1=0.9, b2=0.999, weight_decay=0.01)
  config.optimizer.decay = "matrices"
  # Affects the loss: pairs are weighted per microbatch (docs/guides/models.md).
  config.pipeline.microbatch_size = 4
  zoo.set_run(config, 1e-4, warmup_steps=10_000, num_steps=1_000_000)
  return config
