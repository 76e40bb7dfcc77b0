"""Trains a model of Hugging Face further: a folder with its weights.

bamboo train --config=finetune --config.init_from=DIR \
  --config.data.name=mine.jsonl --workdir=runs/mine

DIR has config.json, which gives the model its name and its sizes, safetensors
files, and a tokenizer, with which texts are tokenized. Its model is one of
GPT-2, Llama and Qwen. Options of the model that are set here, such as `dtype`,
stay; a longer `sequence_length` than the model has is shortened.
"""

import ml_collections

from bamboo_jax.configs import default


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration; `init_from` is still missing."""
  config = default.get_config()
  config.model.name = "init_from"
  config.model.options = dict(sequence_length=1024)
  config.num_steps = 200
  config.pipeline.num_pipelines = 1
  config.pipeline.num_stages = 2
  config.redundancy.mode = "bubble"
  config.optimizer.learning_rate = 1e-5
  config.optimizer.schedule_options.warmup_steps = 20
  return config
