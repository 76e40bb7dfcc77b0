"""AlexNet as Bamboo trains it, on generated images; `:tiny` is small.

Batch and optimizer are those of Krizhevsky et al., 2012: 128 images; the
learning rate has cosine decay. See `configs/zoo.py`.
"""

import ml_collections

from bamboo_jax.configs import zoo


def get_config(variant: str = "full") -> ml_collections.ConfigDict:
  """Returns the configuration of an AlexNet of `paper_models.convnet`."""
  config = zoo.get_image_config("convnet:make_alexnet", variant, num_stages=4, learning_rate=0.01)
  if variant == "tiny":
    config.optimizer.learning_rate = 0.02
  else:
    config.pipeline.num_microbatches = 8
  return config
