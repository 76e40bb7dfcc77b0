"""Accepts the config of a file: its keys, values, folder and policy."""

from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax import config as config_lib
from bamboo_jax.train.setup import init_folder
from bamboo_jax.train.setup import policy


def accept(given: Any) -> config_lib.Config:
  """Returns the options of a run, and what follows from them.

  Args:
    given: What `get_config()` of a config file has returned; or the result of
      an earlier call, which is returned.

  Raises:
    ValueError: A key is misspelt or missing, a value is not allowed, the policy
      is unknown, or options do not fit together.
  """
  if isinstance(given, config_lib.Config):
    return given
  _check_is_config(given)
  config = config_lib.Config.read(given)
  return policy.set_options(init_folder.fill(config))


def check_own(given: Any) -> None:
  """Raises `ValueError` for a config with keys of its own that holds None."""
  _check_is_config(given)
  base.check_none(given)


def _check_is_config(given: Any) -> None:
  """Raises `ValueError` unless `given` is a `ConfigDict`."""
  if not isinstance(given, ml_collections.ConfigDict):
    raise ValueError(
        "get_config() of the config file must return an "
        f"ml_collections.ConfigDict, got {given!r}."
    )
