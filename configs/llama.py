"""Llama 3, with the learning rate of its 8B; see `configs/text_model.py`.

Dubey et al., 2024, table 3. Activations are bfloat16, and a block keeps only
its inputs for the backward pass.
"""

import ml_collections

from configs import text_model


def get_config(variant: str = "3.2_1b") -> ml_collections.ConfigDict:
  """Returns the configuration; a variant of `models.llama.LLAMA_VARIANTS`."""
  config = text_model.get_config("llama", variant)
  if variant != "tiny":
    config.model.options.dtype = "bfloat16"
    config.pipeline.remat = "inputs"
  text_model.set_learning_rate(config, 3e-4, warmup=8_000, steps=1_200_000)
  return config
