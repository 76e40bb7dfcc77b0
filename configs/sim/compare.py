"""All policies on one trace."""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  return ml_collections.ConfigDict(dict(experiment="compare", seed=0))
