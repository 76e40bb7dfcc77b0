"""Qwen 3, trained as `configs/llama.py`; see `configs/text_model.py`."""

import ml_collections

from configs import text_model


def get_config(variant: str = "3_0.6b") -> ml_collections.ConfigDict:
  """Returns the configuration; a variant of `models.llama.QWEN_VARIANTS`."""
  config = text_model.get_config("qwen", variant)
  if variant != "tiny":
    config.model.options.dtype = "bfloat16"
    config.pipeline.remat = "inputs"
  text_model.set_learning_rate(config, 3e-4, warmup=8_000, steps=1_200_000)
  return config
