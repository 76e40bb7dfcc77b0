"""Four nodes that are copies of each other: no pipeline, one stage.

For a model of one layer, such as one of `bamboo_jax.from_loss`, or one that
fits on a node. Each node computes a share of the batch; after a death the other
nodes compute the dead node's share of the step again. Set `model.name` and
`data.name`.
"""

import ml_collections

from bamboo_jax.configs import default


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = default.get_config()
  config.num_steps = 100
  config.model.options = {}
  config.pipeline.num_pipelines = 4
  config.pipeline.num_stages = 1
  config.pipeline.num_microbatches = 2
  config.pipeline.microbatch_size = 8
  config.optimizer.schedule = "constant"
  config.optimizer.schedule_options = {}
  config.optimizer.options = dict(weight_decay=0.0)
  config.evaluate.every_steps = 0
  config.checkpoint.every_steps = 50
  return config
