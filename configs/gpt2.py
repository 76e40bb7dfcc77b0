"""GPT-2 as Bamboo trains it; the shapes of GPT-3 are variants, too.

Optimizer and learning rates are those of GPT-3 (Brown et al., 2020, table 2.1
and appendix B), as the paper on GPT-2 has none. See `configs/text_model.py`.
"""

import ml_collections

from configs import text_model

_LEARNING_RATES = {  # 3e-4 for all others, which have less than a billion.
    "xl": 2e-4,
    "gpt3_2.7b": 1.6e-4,
    "gpt3_6.7b": 1.2e-4,
}


def get_config(variant: str = "xl") -> ml_collections.ConfigDict:
  """Returns the configuration; `variant` is one of `models.gpt2.VARIANTS`."""
  config = text_model.get_config("gpt2", variant)
  peak = _LEARNING_RATES.get(variant, 3e-4)
  text_model.set_learning_rate(config, peak, warmup=750, steps=500_000)
  return config
