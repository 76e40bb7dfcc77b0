"""Nodes that emulate slower machines: many of them on few cores.

configs/paced.py      2 pipelines of 4 stages
configs/paced.py:1x3  1 pipeline of 3 stages
"""

import re

import ml_collections

from bamboo_jax.configs import default


def parse_size(size: str) -> tuple[int, int]:
  """Returns the numbers of pipelines and stages of a size, such as 2x4."""
  match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", size)
  if not match:
    raise ValueError(f"A size is pipelines x stages, such as 2x4, got {size!r}.")
  return int(match[1]), int(match[2])


def get_config(size: str = "2x4") -> ml_collections.ConfigDict:
  """Returns the configuration of pipelines x stages."""
  num_pipelines, num_stages = parse_size(size)
  config = default.get_config()
  config.num_steps = 20
  config.model.name = "paced"
  config.model.options = dict(
      num_blocks=2 * num_stages, forward_ms=10.0, backward_ms=20.0, sequence_length=4, vocab_size=16
  )
  config.data.name = "synthetic"
  config.pipeline.num_pipelines = num_pipelines
  config.pipeline.num_stages = num_stages
  config.pipeline.num_shares = 4 * num_pipelines
  config.redundancy.mode = "bubble"
  config.optimizer.learning_rate = 1e-2
  config.optimizer.schedule_options.warmup_steps = 2
  config.evaluate.every_steps = 0
  config.checkpoint.every_steps = 0
  return config
