"""Parcae's evaluation on a recorded trace, from its table of throughput.

configs/sim/parcae.py:gpt-1.5b  or bert, gpt-6.7b, resnet152, vgg19

Of its reactive policy, `--policies=oobleck+grid`: pipelines change at every join or loss,
at any cost; by default a change takes no time. The proactive policy looks ahead by
config.recovery.horizon_secs. See `docs/research/published.md`.
"""

import ml_collections

from bamboo_jax import base
from bamboo_jax.configs.sim import compare

# By model: the fewest nodes in the table, and the samples of a step.
_MODELS = {
    "bert": (2, 1024),
    "gpt-1.5b": (6, 128),
    "gpt-6.7b": (12, 64),
    "resnet152": (2, 2048),
    "vgg19": (4, 2048),
}


def get_config(model: str = "gpt-1.5b") -> ml_collections.ConfigDict:
  """Returns the configuration for a model."""
  if model not in _MODELS:
    raise ValueError(base.suggest(model, _MODELS, what="model"))
  config = compare.get_config()
  config.pipeline.num_stages, samples_per_step = _MODELS[model]
  config.study.table.update(
      file="third_party/published/parcae_strategy_throughput.csv",
      column="samples_per_s",
      rows=f"model={model}",
      samples_per_step=float(samples_per_step),
  )
  config.study.durations.update(dict.fromkeys(config.study.durations, 0.0))
  config.study.durations.save_every_secs = 1.0  # At most a step is ever lost.
  config.recovery.horizon_secs = 1e9  # Any change pays.
  return config
