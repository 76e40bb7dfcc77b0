"""Qwen 3, trained like `configs/llama.py`."""

import ml_collections

from bamboo_jax.configs import llama


def get_config(variant: str = "3_0.6b") -> ml_collections.ConfigDict:
  """Returns the configuration of a variant of `models.text.llama`."""
  return llama.get_config(variant, name="qwen")
