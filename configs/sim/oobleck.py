"""Oobleck's evaluation against Varuna and Bamboo, by its artifact's rules.

configs/sim/oobleck.py             all models
configs/sim/oobleck.py:GPT-3-2.7b  one of them

On the published traces, or with `--trace=FILE` on one. The tables are in
`docs/research/published.md`.
"""

import ml_collections
from ml_collections import config_dict


def get_config(model: str = "") -> ml_collections.ConfigDict:
  """Returns the configuration for one model, or for all."""
  return config_dict.create(
      experiment="oobleck_artifact",
      models=(model,) if model else (),  # Empty: all.
      systems=("bamboo", "varuna", "oobleck"),
      # Whether the trace is a recorded one: with Varuna, the artifact then
      # rolls back no work of the smaller models. None: whether nodes are added
      # after the start.
      recorded=config_dict.placeholder(bool),
  )
