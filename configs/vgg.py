"""VGG-19 as Bamboo trains it; `:tiny` is small.

Batch and optimizer are those of Simonyan and Zisserman, 2014: 256 images; the
learning rate falls by a cosine. See `configs/image_model.py`.
"""

import ml_collections

from configs import image_model


def get_config(variant: str = "19") -> ml_collections.ConfigDict:
  """Returns the configuration; `variant` is a key of `convnet.VGG_VARIANTS`."""
  return image_model.get_config(
      "vgg", variant, num_stages=4, learning_rate=0.01
  )
