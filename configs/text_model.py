"""What the configs of models of text have in common.

Their argument is a variant of the model, as `python -m launch.models` lists
them: `--config=configs/gpt2.py:xl`. All but `tiny` have the layout of Bamboo
(NSDI'23): 4 pipelines of 8 stages; its 1.5 times as many nodes are
`--config.pipeline.num_stages=12`. The text is that of Python itself, in bytes,
until `--config.data.name=text_files --config.data.options.pattern='FILES'` and
`--config.data.options.tokens=bpe --config.data.options.vocab_size=NUMBER`
choose another.
"""

import ml_collections

from configs import default


def get_config(name: str, variant: str) -> ml_collections.ConfigDict:
  """Returns the configuration of a model of `zoo`."""
  config = default.get_config()
  config.model.name = name
  config.model.options = dict(variant=variant)
  config.redundancy.mode = "eager"
  config.pipeline.num_pipelines = 4
  config.pipeline.num_stages = 8
  config.pipeline.num_microbatches = 16
  config.plan.memory_limit_gib = 16.0  # Of a V100, as in p3.2xlarge.
  config.optimizer.options = dict(b1=0.9, b2=0.95, weight_decay=0.1)
  if variant == "tiny":
    _make_tiny(config)
  return config


def _make_tiny(config: ml_collections.ConfigDict) -> None:
  """Makes it a run of a minute or two on 2 cores: 2 pipelines of 3 stages."""
  config.num_steps = 60
  config.pipeline.num_pipelines = 2
  config.pipeline.num_stages = 3
  config.pipeline.num_microbatches = 4
  config.pipeline.microbatch_size = 8
  config.redundancy.spares = 1
  config.plan.memory_limit_gib = None
  config.evaluate.every_steps = 30
  config.evaluate.num_microbatches = 4
  config.checkpoint.every_steps = 20


def set_learning_rate(
    config: ml_collections.ConfigDict, peak: float, *, warmup: int, steps: int
) -> None:
  """Sets a run of `steps` with a cosine to zero; `tiny` learns fast instead."""
  if config.model.options.variant == "tiny":
    peak, warmup, steps = 3e-3, 10, config.num_steps
  config.num_steps = steps
  config.optimizer.learning_rate = peak
  config.optimizer.schedule_options.warmup_steps = warmup
  config.optimizer.schedule_options.decay_steps = steps
