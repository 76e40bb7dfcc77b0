"""Nodes that keep the pace of slower machines: many of them on few cores.

configs/paced.py      2 pipelines of 4 stages
configs/paced.py:1x3  1 pipeline of 3 stages
"""

import ml_collections

from configs import default


def get_config(size: str = "2x4") -> ml_collections.ConfigDict:
  """Returns the configuration of pipelines x stages."""
  config = default.get_config()
  pipelines, _, stages = size.partition("x")
  config.num_steps = 20
  config.model.name = "paced"
  config.model.options = dict(
      num_blocks=2 * int(stages),
      forward_ms=10.0,
      backward_ms=20.0,
      sequence_length=4,
      vocab_size=16,
  )
  config.data.name = "synthetic"
  config.pipeline.num_pipelines = int(pipelines)
  config.pipeline.num_stages = int(stages)
  config.pipeline.num_shares = 4 * int(pipelines)
  config.redundancy.mode = "bubble"
  config.optimizer.learning_rate = 1e-2
  config.optimizer.schedule_options.warmup_steps = 2
  config.evaluate.every_steps = 0
  config.checkpoint.every_steps = 0
  return config
