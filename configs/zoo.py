"""Settings shared by the configs of published models.

Their argument is a variant, as listed by `bamboo plan --list`: `--config=gpt2:xl`.
All but `tiny` have the layout of Bamboo (NSDI'23): 4 pipelines of 8 stages, or
of 4. Bamboo's overprovisioning by 1.5 is `--config.pipeline.num_stages=12`, or
6.

Text is by default that of Python itself, in bytes;
`--config.data.name='FILES'`, paths of tokens or of texts, and
`--config.data.options.tokenizer=FILE` select another. Images are by default
generated (`stripes`);
`--config.data.name=bamboo_jax.reproductions.paper_models.image_folder:make_image_folder
--config.data.options.path=imagenet/train
--config.data.options.heldout_path=imagenet/val` select ImageNet.
"""

import ml_collections

from bamboo_jax.configs import default

_PAPER_MODELS = "bamboo_jax.reproductions.paper_models"


def get_config(name: str, variant: str, *, num_stages: int = 8) -> ml_collections.ConfigDict:
  """Returns the configuration of a model; `set_run` completes it."""
  config = default.get_config()
  config.model.name = name
  config.model.options = dict(variant=variant)
  config.redundancy.mode = "eager"
  config.pipeline.num_pipelines = 4
  config.pipeline.num_stages = num_stages
  config.pipeline.num_microbatches = 16
  config.plan.memory_limit_gib = 16.0  # Of a V100, as in p3.2xlarge.
  config.optimizer.options = dict(b1=0.9, b2=0.95, weight_decay=0.1)
  return config


def get_image_config(
    name: str, variant: str, *, num_stages: int, learning_rate: float
) -> ml_collections.ConfigDict:
  """Returns the configuration of a model of images; SGD with momentum.

  `name` is the module in `reproductions.paper_models` and the function.
  """
  config = get_config(f"{_PAPER_MODELS}.{name}", variant, num_stages=num_stages)
  config.data.name = f"{_PAPER_MODELS}.stripes:make_stripes"
  config.data.options = dict()
  config.pipeline.microbatch_size = 4
  config.optimizer.name = "sgd"
  config.optimizer.options = dict(momentum=0.9, weight_decay=5e-4)
  config.optimizer.clip_norm = None
  set_run(
      config,
      learning_rate,
      num_steps=450_000,  # 90 epochs of ImageNet.
      warmup_steps=22_500,
      tiny=(0.05, 100),
  )
  return config


def set_run(
    config: ml_collections.ConfigDict,
    learning_rate: float,
    *,
    num_steps: int,
    warmup_steps: int,
    tiny: tuple[float, int] = (3e-3, 60),
) -> None:
  """Sets the length of a run and a learning rate with cosine decay to zero.

  Args:
    tiny: Learning rate and number of steps of the variant `tiny`, for a run of
      a minute or two on 2 cores: 2 pipelines of 3 stages.
  """
  if config.model.options.variant == "tiny":
    learning_rate, num_steps = tiny
    warmup_steps = 5
    config.pipeline.num_pipelines = 2
    config.pipeline.num_stages = 3
    config.pipeline.num_microbatches = 4
    config.pipeline.microbatch_size = 8
    config.redundancy.spares = 1
    config.plan.memory_limit_gib = None
    config.evaluate.every_steps = num_steps // 2
    config.evaluate.num_microbatches = 8
    config.checkpoint.every_steps = 20
  config.num_steps = num_steps
  config.optimizer.learning_rate = learning_rate
  config.optimizer.schedule_options.warmup_steps = warmup_steps
