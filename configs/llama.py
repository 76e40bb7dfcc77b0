"""Llama 3, with the learning rate of its 8B; see `configs/zoo.py`.

Dubey et al., 2024, table 3. Activations are bfloat16, and a block keeps only
its inputs for the backward pass.
"""

import ml_collections

from bamboo_jax.configs import zoo


def get_config(variant: str = "3.2_1b", *, name: str = "llama") -> ml_collections.ConfigDict:
  """Returns the configuration of a variant of `models.text.llama`."""
  config = zoo.get_config(name, variant)
  if variant != "tiny":
    config.model.options.dtype = "bfloat16"
    config.pipeline.remat = "inputs"
  zoo.set_run(config, 3e-4, warmup_steps=8_000, num_steps=1_200_000)
  return config
