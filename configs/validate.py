"""A small model for `bamboo simulate --beside`: steps of a tenth of a second on 2 cores.

configs/validate.py      1 pipeline of 2 stages
configs/validate.py:2x2  2 pipelines of 2 stages
configs/validate.py:2x4  2 pipelines of 4 stages, of paced nodes
"""

import ml_collections

from bamboo_jax.configs import paced, quickstart

_PACED = ("2x4",)  # More than 2 cores can compute, so these nodes are paced.


def get_config(size: str = "1x2") -> ml_collections.ConfigDict:
  """Returns the configuration of pipelines x stages."""
  num_pipelines, num_stages = paced.parse_size(size)
  is_paced = size in _PACED
  config = paced.get_config(size) if is_paced else quickstart.get_config()
  config.pipeline.num_pipelines = num_pipelines
  config.pipeline.num_stages = num_stages
  config.redundancy.mode = "lazy"
  config.redundancy.spares = 0
  config.evaluate.every_steps = 0
  config.checkpoint.every_steps = 0
  config.cost.instance = "p3.2xlarge"  # Dollars are predicted, too.
  return config
