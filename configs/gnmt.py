"""GNMT-16 as Bamboo trains it: 4 pipelines of 4 stages; `:tiny` is small.

Batch, optimizer, clipping and dropout are those of Wu et al., 2016, section 8:
128 pairs of sentences, Adam; there is no second phase with SGD. Bamboo's
overprovisioning by 1.5 is `--config.pipeline.num_stages=6`.

Pairs are by default names and docstrings of Python's library, in bytes;
`--config.data.options.source='wmt16/train*.en'
--config.data.options.target='wmt16/train*.de'
--config.data.options.tokenizer=tokenizer.json
--config.model.options.vocab_size=32000` select others.
"""

import ml_collections

from bamboo_jax.configs import zoo


def get_config(variant: str = "16") -> ml_collections.ConfigDict:
  """Returns the configuration of a variant of `paper_models.gnmt`."""
  config = zoo.get_config(
      "bamboo_jax.reproductions.paper_models.gnmt:make_gnmt", variant, num_stages=4
  )
  tiny = variant == "tiny"
  config.model.options.update(
      sequence_length=32 if tiny else 50, vocab_size=256, dropout_rate=0.1 if tiny else 0.3
  )
  config.data.name = "bamboo_jax.reproductions.paper_models.pairs:make_translation"
  config.data.options = dict(heldout_fraction=0.1)
  config.pipeline.num_microbatches = 8
  config.pipeline.microbatch_size = 4
  config.optimizer.name = "adam"
  config.optimizer.options = dict()
  config.optimizer.clip_norm = 5.0
  zoo.set_run(config, 2e-4, warmup_steps=5_000, num_steps=100_000, tiny=(1e-2, 60))
  return config
