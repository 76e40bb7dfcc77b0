"""The flag `--config`: a file, and overrides such as `--config.num_steps=9`.

The keys are those of `configs/default.py` in any case, apart from options: what
those are called depends on what they are for, which checks them itself. So they
may be added on the command line too. A command whose configs are of other kinds
takes the keys that are in the file, and no others.
"""

from collections.abc import Mapping, Sequence
import importlib.util
import os
import re
import traceback
from typing import Any

from absl import flags
import ml_collections
from ml_collections import config_flags

from bamboo_jax import base
from configs import default as default_config

_NAME = "config"
_MODULE = f"{_NAME}_config"  # What `config_flags` names the module of a file.
_OPTIONS = ("options", "schedule_options")
_MAY_BE_NONE = ("config.optimizer.clip_norm",)

flags.disclaim_key_flags()  # The flag is one of the command that defines it.


def define(path: str | None, help_text: str) -> flags.FlagHolder:
  """Defines the flag `--config`; a config is checked by `check`.

  Args:
    path: The file to read if the flag is not given; None if there is none.
    help_text: Says what the config is for.
  """
  return config_flags.DEFINE_config_file(
      _NAME, path, help_text, lock_config=False, accept_new_attributes=True
  )


def define_own(help_text: str) -> flags.FlagHolder:
  """Defines the flag `--config`, which must be given and has keys of its own.

  Args:
    help_text: Says what the config is for.
  """
  holder = define(None, help_text)
  flags.mark_flag_as_required(holder)
  return holder


def check_arguments(argv: Sequence[str], *, own_keys: bool = False) -> None:
  """Checks the flag and its overrides, before it is parsed.

  Args:
    argv: The arguments of the command.
    own_keys: Whether the keys are those of the file, not of the defaults.

  Raises:
    ValueError: There is no such file, or a key is misspelt.
  """
  path = _find_path(argv)
  if path is not None and not os.path.isfile(path.split(":", 1)[0]):
    raise ValueError(f"There is no config file {path!r}.")
  if own_keys and path is None:
    return
  known = _load(path) if own_keys else default_config.get_config()
  for argument in argv:
    if match := re.match(rf"--?(?:no)?{_NAME}\.([^=]*)", argument):
      _check_key(match[1], known)


def check(config: Any) -> None:
  """Checks keys and types of a config, and locks it.

  Raises:
    ValueError: A key is misspelt or missing, or a value has another type than
      in `configs/default.py`.
  """
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(
        "get_config() of the config file must return an "
        f"ml_collections.ConfigDict, got {config!r}."
    )
  _check_section(config, default_config.get_config(), _NAME)
  config.lock()


def explain(error: BaseException) -> str:
  """Returns what the code of a config file did wrong, and where if known."""
  message = str(error.args[0] if error.args else error).strip()
  message = message.splitlines()[-1] if "Traceback" in message else message
  if f"module '{_MODULE}' has no attribute" in message:
    return "The config file has no function get_config()."
  chain = error
  while chain is not None:
    for frame, line in traceback.walk_tb(chain.__traceback__):
      if frame.f_globals.get("__name__") == _MODULE:
        message = message.removeprefix(f"{type(chain).__name__}: ")
        return (
            f"Cannot read the config: {frame.f_code.co_filename}:{line}: "
            f"{type(chain).__name__}: {message}"
        )
    chain = chain.__context__
  return f"Cannot read the config: {type(error).__name__}: {message}"


def _load(path: str) -> ml_collections.ConfigDict:
  """Returns what the file says, which may end with `:` and an argument."""
  file, *argument = path.split(":", 1)
  spec = importlib.util.spec_from_file_location(_MODULE, file)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(*argument)


def _find_path(argv: Sequence[str]) -> str | None:
  """Returns the file that the flag names; None if it is not given."""
  path = None
  for argument, following in zip(argv, [*argv[1:], ""], strict=True):
    if match := re.fullmatch(rf"--?{_NAME}(=(.*))?", argument):
      path = following if match[1] is None else match[2]
  return path


def _check_key(key: str, section: ml_collections.ConfigDict) -> None:
  """Raises `ValueError` unless there is such a key, or it is of an option."""
  path = _NAME
  for part in key.split("."):
    if not isinstance(section, ml_collections.ConfigDict):
      raise ValueError(f"{path} has no keys, got --{_NAME}.{key}.")
    if part not in section:
      raise ValueError(base.suggest(part, section, what=f"key of {path}:"))
    if part in _OPTIONS:
      return
    section, path = section[part], f"{path}.{part}"


def _check_section(
    section: Mapping[str, Any], default: ml_collections.ConfigDict, path: str
) -> None:
  for key in section:
    if key not in default:
      raise ValueError(base.suggest(key, default, what=f"key of {path}:"))
  for key, value in default.items():
    name = f"{path}.{key}"
    if key not in section:
      raise ValueError(
          f"{name} is missing; a config must start from configs/default.py."
      )
    found = section[key]
    if isinstance(value, ml_collections.ConfigDict):
      if not isinstance(found, ml_collections.ConfigDict):
        raise ValueError(f"{name} must be a dict, got {found!r}.")
      if key not in _OPTIONS:
        _check_section(found, value, name)
    elif found is not None or (value is not None and name not in _MAY_BE_NONE):
      wanted = default.get_type(key)
      if not base.fits(found, wanted):
        raise ValueError(
            f"{name} must be {wanted.__name__}, got {found!r}, "
            f"{type(found).__name__}."
        )
