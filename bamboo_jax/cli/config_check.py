"""Checks config files: unknown keys, types, missing values, and their code."""

from collections.abc import Mapping, Sequence
import importlib.util
import itertools
import pathlib
import re
import traceback
from typing import Any

from absl import flags

from bamboo_jax import base
from bamboo_jax.base import functions, packaged

_NAME = "config"
_MODULE = "config_config"  # Name that `config_flags` gives a file's module.


class _OrNone(flags.ArgumentParser[Any]):
  """Parses "None" as None and other values by another parser."""

  def __init__(self, parser: flags.ArgumentParser[Any]) -> None:
    self._parser = parser
    self.syntactic_help = parser.syntactic_help

  def parse(self, argument: Any) -> Any:
    """Returns None for "None", else the value of the wrapped parser."""
    return None if argument == "None" else self._parser.parse(argument)

  def flag_type(self) -> str:
    """Returns the name of the type."""
    return self._parser.flag_type()


# Parsers of overrides, by type of the option.
PARSERS = {
    bool: _OrNone(flags.BooleanParser()),
    float: _OrNone(flags.FloatParser()),
    int: _OrNone(flags.IntegerParser()),
    str: _OrNone(flags.ArgumentParser()),
}


def find(name: str) -> str:
  """Returns the path of a config, see `packaged.find_config`.

  A file of the user may import its neighbours from now on.
  """
  path = packaged.find_config(name)
  if path == name:
    functions.allow_neighbours(pathlib.Path(path.partition(":")[0]))
  return path


def load(path: str) -> Any:
  """Returns the config of a short name or a path."""
  file, *argument = find(path).split(":", 1)
  spec = importlib.util.spec_from_file_location(_MODULE, file)
  assert spec is not None and spec.loader is not None, file
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(*argument)


def find_paths(argv: Sequence[str]) -> list[str]:
  """Returns the value of each flag `--config` in `argv`; "" if it has none."""
  paths = []
  for argument, following in itertools.pairwise([*argv, ""]):
    if match := re.fullmatch(r"--?config(=(.*))?", argument):
      paths.append(following if match[1] is None else match[2])
  return paths


def check_overrides(argv: Sequence[str], known: Any, *, gone: Mapping[str, str]) -> None:
  """Raises `ValueError` if an override sets no key of the config `known`.

  `gone` tells by option of an earlier version what to use instead.
  """
  for argument in argv:
    if match := re.match(r"--?(?:no)?config\.([^=]*)", argument):
      check_key(match[1], known, gone=gone)


def check_key(key: str, section: Any, *, gone: Mapping[str, str]) -> None:
  """Raises `ValueError` unless `section` has the dotted `key`.

  Below a section of `base.OPTIONS` any key is allowed.
  """
  path, kind = _NAME, type(section)
  for part in key.split("."):
    if not isinstance(section, kind):
      raise ValueError(f"{path} has no keys, got --{_NAME}.{key}.")
    if part not in section:
      if (name := f"{path}.{part}") in gone:
        raise ValueError(f"{name} is gone: {gone[name]}")
      raise ValueError(base.suggest(part, section, what=f"key of {path}:"))
    if part in base.OPTIONS:
      return
    section, path = section[part], f"{path}.{part}"


def fill(config: Any, values: Mapping[str, Any]) -> Any:
  """Sets options of a config in place and returns it.

  `values` are nested like `config`; the free-form sections of `base.OPTIONS`
  are replaced as a whole.
  """
  for key, value in values.items():
    if isinstance(value, dict) and key not in base.OPTIONS:
      fill(config[key], value)
    else:
      config[key] = value
  return config


def explain(error: BaseException) -> str:
  """Returns a message on an error in a config file, with its line if known."""
  message = str(error.args[0] if error.args else error).strip()
  message = message.splitlines()[-1] if "Traceback" in message else message
  if f"module '{_MODULE}' has no attribute" in message:
    return "The config file has no function get_config()."
  if "get_config() takes 0 positional arguments" in message:
    return "This config has no variants: leave out the colon and what follows."
  if isinstance(error, ImportError) and error.name == "configs":
    message += "; the packaged configs are in bamboo_jax.configs"
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
