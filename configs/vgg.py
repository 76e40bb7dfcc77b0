"""VGG-19 as Bamboo trains it; `:tiny` is small.

Batch and optimizer are those of Simonyan and Zisserman, 2014: 256 images; the
learning rate has cosine decay. See `configs/zoo.py`.
"""

import ml_collections

from bamboo_jax.configs import zoo


def get_config(variant: str = "19") -> ml_collections.ConfigDict:
  """Returns the configuration of a VGG of `paper_models.convnet`."""
  return zoo.get_image_config("convnet:make_vgg", variant, num_stages=4, learning_rate=0.01)
