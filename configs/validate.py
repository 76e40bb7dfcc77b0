"""A small model for `launch.validate`: steps of a tenth of a second on 2 cores.

configs/validate.py      1 pipeline of 2 stages
configs/validate.py:2x2  2 pipelines of 2 stages
"""

import ml_collections

from configs import quickstart


def get_config(size: str = "1x2") -> ml_collections.ConfigDict:
  """Returns the configuration of pipelines x stages."""
  config = quickstart.get_config()
  pipelines, _, stages = size.partition("x")
  config.pipeline.num_pipelines = int(pipelines)
  config.pipeline.num_stages = int(stages)
  config.redundancy.mode = "lazy"
  config.redundancy.spares = 0
  config.evaluate.every_steps = 0
  config.checkpoint.every_steps = 0
  return config
