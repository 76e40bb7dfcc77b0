"""What the configs of models of images have in common.

Their argument is a variant of the model, as `python -m launch.models` lists
them: `--config=configs/resnet.py:50`. All but `tiny` have the layout of Bamboo
(NSDI'23), whose 1.5 times as many nodes are `--config.pipeline.num_stages=12`
for ResNet and 6 for the others. Images are generated, see `data.stripes`, until
`--config.data.name=image_folder --config.data.options.path=imagenet/train
--config.data.options.heldout_path=imagenet/val` choose ImageNet.
"""

import ml_collections

from configs import default


def get_config(
    name: str, variant: str, *, num_stages: int, learning_rate: float
) -> ml_collections.ConfigDict:
  """Returns the configuration of a model of `zoo`; SGD with momentum."""
  config = default.get_config()
  config.model.name = name
  config.model.options = dict(variant=variant)
  config.data.name = "stripes"
  config.redundancy.mode = "eager"
  config.pipeline.num_pipelines = 4
  config.pipeline.num_stages = num_stages
  config.pipeline.num_microbatches = 16
  config.pipeline.microbatch_size = 4
  config.plan.memory_limit_gib = 16.0  # Of a V100, as in p3.2xlarge.
  config.optimizer.name = "sgd"
  config.optimizer.options = dict(momentum=0.9, weight_decay=5e-4)
  config.optimizer.clip_norm = None
  config.optimizer.learning_rate = learning_rate
  config.num_steps = 450_000  # 90 epochs of ImageNet.
  if variant == "tiny":
    make_tiny(config)
    config.optimizer.learning_rate = 0.05
  config.optimizer.schedule_options.warmup_steps = config.num_steps // 20
  config.optimizer.schedule_options.decay_steps = config.num_steps
  return config


def make_tiny(config: ml_collections.ConfigDict) -> None:
  """Makes it a run of a minute or two on 2 cores: 2 pipelines of 3 stages."""
  config.num_steps = 100
  config.pipeline.num_pipelines = 2
  config.pipeline.num_stages = 3
  config.pipeline.num_microbatches = 4
  config.pipeline.microbatch_size = 8
  config.redundancy.spares = 1
  config.plan.memory_limit_gib = None
  config.evaluate.every_steps = 50
  config.evaluate.num_microbatches = 8
  config.checkpoint.every_steps = 20
