"""The flag `--config`: a file, and overrides such as `--config.num_steps=9`.

The keys are those of `configs/default.py`, except in options, which are checked
where they are used and may be added on the command line. A command with configs
of other kinds takes the keys that are in the file, and no others.
"""

from collections.abc import Sequence
import os
import re
from typing import Any

from absl import flags
import ml_collections
from ml_collections import config_flags

from bamboo_jax import base
from bamboo_jax.cli import config_check
from bamboo_jax.train.setup import policy
from configs import default as default_config

flags.disclaim_key_flags()  # The flag is one of the command that defines it.


def define(path: str | None, help_text: str) -> flags.FlagHolder:
  """Defines the flag `--config`, `path` by default; see `check`.

  The text "None" is None: where it is not allowed, `check` rejects it.
  """
  for kind, parser in config_check.PARSERS.items():
    config_flags.register_flag_parser_for_type(kind, parser)
  return config_flags.DEFINE_config_file(
      "config", path, help_text, lock_config=False, accept_new_attributes=True
  )


def check_arguments(argv: Sequence[str], *, own_keys: bool = False) -> None:
  """Checks the flag and its overrides, before it is parsed.

  Raises `ValueError` without one file that exists, or if a key is misspelt.
  """
  paths = _find_paths(argv)
  if len(paths) > 1:
    raise ValueError(f"Give one --config, got {' and '.join(paths)}.")
  path = paths[0] if paths else None
  if path is not None and not os.path.isfile(path.split(":", 1)[0]):
    raise ValueError(f"There is no config file {path!r}.")
  if own_keys and path is None:
    return
  known = config_check.load(path) if own_keys else default_config.get_config()
  for argument in argv:
    if match := re.match(r"--?(?:no)?config\.([^=]*)", argument):
      config_check.check_key(match[1], known)


def check(config: Any, *, own_keys: bool = False) -> None:
  """Checks keys and types of a config, locks it, and applies its policy.

  With `own_keys` it only looks for None. Raises `ValueError` for a key or type
  that `configs/default.py` lacks, or an unknown policy.
  """
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(
        "get_config() of the config file must return an "
        f"ml_collections.ConfigDict, got {config!r}."
    )
  if own_keys:
    base.check_none(config)
    return
  config_check.check_section(config, default_config.get_config())
  config.lock()
  policy.apply(config)


def _find_paths(argv: Sequence[str]) -> list[str]:
  paths = []
  for argument, following in zip(argv, [*argv[1:], ""], strict=True):
    if match := re.fullmatch(r"--?config(=(.*))?", argument):
      paths.append(following if match[1] is None else match[2])
  return paths
