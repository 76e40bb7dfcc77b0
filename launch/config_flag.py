"""The flag `--config`: a config, and overrides such as `--config.num_steps=9`.

The keys are those of `configs/default.py`, except in sections of options, which
are checked by their users and may get new keys on the command line. A command
with configs of other kinds accepts only the keys that are in the file.
"""

from collections.abc import Sequence
import functools
from typing import Any

from absl import flags
import ml_collections
from ml_collections.config_flags import config_flags

from bamboo_jax import config as config_lib
from bamboo_jax.base import packaged
from bamboo_jax.cli import config_check
from bamboo_jax.configs import default as default_config

flags.disclaim_key_flags()  # The flag is one of the command that defines it.
PRINT = "print_config"


class _Parser(config_flags.ConfigFileFlagParser):  # type: ignore[misc]

  def parse(self, path: str) -> Any:
    """Returns the config of a short name or a path, with its name."""
    config = super().parse(config_check.find(path))
    if isinstance(config, ml_collections.ConfigDict) and config.get("name") == "":
      config.name = packaged.name_config(path)
    return config


def define(name: str | None, help_text: str) -> flags.FlagHolder[Any]:
  """Defines the flag `--config`, `name` by default; see `accept.accept`.

  The text "None" is None: where it is not allowed, `accept` rejects it.
  """
  for kind, parser in config_check.PARSERS.items():
    config_flags.register_flag_parser_for_type(kind, parser)
  help_text += " A name that `bamboo --help` lists, or a file."
  holder: flags.FlagHolder[Any] = config_flags.DEFINE_config_file(
      "config", None, help_text, lock_config=False, accept_new_attributes=True
  )
  flags.FLAGS["config"].parser = _Parser("config", lock_config=False)
  flags.set_default(holder, name)
  if name is not None:
    flags.DEFINE_bool(PRINT, False, "Print the config with what differs from the default, and end.")
  return holder


def is_printed() -> bool:
  """Returns whether the config is printed, and nothing else is done."""
  return PRINT in flags.FLAGS and bool(flags.FLAGS[PRINT].value)


def render(config: config_lib.Config) -> str:
  """Returns assignments for a config file, a line each, with other defaults."""
  lines = []
  for option in config_lib.list_options(config_lib.Config):
    if option.default:
      find = functools.partial(functools.reduce, getattr, option.name.split("."))
      value = find(config)
      default = "" if value == find(config_lib.Config()) else f"  # default: {option.default}"
      lines.append(f"config.{option.name} = {value!r}{default}")
  return "\n".join(lines)


def check_arguments(argv: Sequence[str], *, own_keys: bool = False) -> None:
  """Checks the flag and its overrides, before they are parsed.

  Raises `ValueError` unless one existing config is given, with known keys.
  """
  paths = config_check.find_paths(argv)
  if len(paths) > 1:
    raise ValueError(f"Give one --config, got {' and '.join(paths)}.")
  path = paths[0] if paths else None
  if path is not None:
    packaged.find_config(path)
  if not own_keys:
    known = default_config.get_config()
  elif path is not None:
    known = config_check.load(path)
  else:
    return
  config_check.check_overrides(argv, known, gone=config_lib.GONE)
