"""GPT-2 as Bamboo trains it; the shapes of GPT-3 are variants, too.

Optimizer and learning rates are those of GPT-3 (Brown et al., 2020, table 2.1
and appendix B), since the paper on GPT-2 gives none. Weight decay, which it
does not specify, is as in Megatron-LM and nanoGPT: not on norms and biases, but
on embeddings. See `configs/zoo.py`.
"""

import ml_collections

from bamboo_jax.configs import zoo

_LEARNING_RATES = {  # 3e-4 below a billion parameters.
    "xl": 2e-4,
    "gpt3_2.7b": 1.6e-4,
    "gpt3_6.7b": 1.2e-4,
}


def get_config(variant: str = "xl") -> ml_collections.ConfigDict:
  """Returns the configuration of a variant of `models.text.gpt2`."""
  config = zoo.get_config("gpt2", variant)
  config.optimizer.decay = "matrices"
  peak = _LEARNING_RATES.get(variant, 3e-4)
  zoo.set_run(config, peak, warmup_steps=750, num_steps=500_000)
  return config
