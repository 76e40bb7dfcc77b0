"""ResNet-152 as Bamboo trains it; `:50` and `:tiny` are smaller.

Batch and optimizer are those of He et al., 2015: 256 images, weight decay 1e-4;
the learning rate falls by a cosine. See `configs/image_model.py`.
"""

import ml_collections

from configs import image_model


def get_config(variant: str = "152") -> ml_collections.ConfigDict:
  """Returns the configuration; `variant` is one of `models.resnet.VARIANTS`."""
  config = image_model.get_config(
      "resnet", variant, num_stages=8, learning_rate=0.1
  )
  config.optimizer.options.weight_decay = 1e-4
  return config
