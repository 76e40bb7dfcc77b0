"""ResNet-152 as Bamboo trains it; `:50` and `:tiny` are smaller.

Batch and optimizer are those of He et al., 2015: 256 images, weight decay 1e-4;
the learning rate has cosine decay. See `configs/zoo.py`.
"""

import ml_collections

from bamboo_jax.configs import zoo


def get_config(variant: str = "152") -> ml_collections.ConfigDict:
  """Returns the configuration of a variant of `paper_models.resnet`."""
  config = zoo.get_image_config("resnet:make_resnet", variant, num_stages=8, learning_rate=0.1)
  config.optimizer.options.weight_decay = 1e-4
  return config
