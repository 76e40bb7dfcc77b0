"""Accepts a config: its keys, its types, its folder and its policy."""

from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax.cli import config_check
from bamboo_jax.train.setup import init_folder
from bamboo_jax.train.setup import policy


def accept(config: Any, default: ml_collections.ConfigDict | None) -> None:
  """Checks keys and types of a config, locks it, and sets what follows from it.

  Args:
    config: What `get_config()` of a config file has returned.
    default: The config of `configs/default.py`; None: the config has keys of
      its own, and is only searched for None.

  Raises:
    ValueError: A key is not in `default` or missing, a type differs, or the
      policy is unknown.
  """
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(
        "get_config() of the config file must return an "
        f"ml_collections.ConfigDict, got {config!r}."
    )
  if default is None:
    base.check_none(config)
    return
  config_check.check_section(config, default)
  config.lock()
  init_folder.apply(config)
  policy.apply(config)
