"""The flag `--config`: a config file, and options that the command line overrides."""

import ast
from collections.abc import Mapping, Sequence
import importlib.machinery
import itertools
import pathlib
import re
import sys
import traceback
import types
import typing
from typing import Any, NamedTuple

from absl import flags
import ml_collections
from ml_collections.config_flags import config_path

from bamboo_jax import config as config_lib
from bamboo_jax.base import functions, packaged

flags.disclaim_key_flags()
NAME, PRINT = "config", "print_config"
_MODULE = "config_config"  # Name of the module of a config file.
_DICTS = (config_lib.Section, ml_collections.ConfigDict)
_PARSERS: Mapping[Any, tuple[flags.ArgumentParser[Any], str]] = {
    bool: (flags.BooleanParser(), "true or false"),
    float: (flags.FloatParser(), "a number"),
    int: (flags.IntegerParser(), "a whole number"),
    str: (flags.ArgumentParser(), "a text"),
}


class GivenConfig(NamedTuple):
  """What a command line says about the config.

  Attributes:
    values: Those of `--config.KEY=VALUE`, by key.
    arguments: Those for a child process with the same config.
  """

  values: dict[str, Any]
  arguments: list[str]


def load(name: str) -> Any:
  """Returns the config of a short name or a path, see `packaged.find_config`.

  A file of the user may import its neighbours from now on.
  """
  path = packaged.find_config(name)
  file, *argument = path.split(":", 1)
  if path == name:
    functions.allow_neighbours(pathlib.Path(file))
  module = sys.modules[_MODULE] = types.ModuleType(_MODULE)
  module.__file__ = file
  importlib.machinery.SourceFileLoader(_MODULE, file).exec_module(module)
  return module.get_config(*argument)


def given() -> GivenConfig:
  """Returns the config that was given on this command line; call `parse` first."""
  flag: Any = flags.FLAGS[NAME]
  found: GivenConfig = flag.given
  return found


def define(name: str, default: str, flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines `--config`, and `--print_config`."""
  flags.DEFINE_multi_string(name, default, "", flag_values)
  flags.DEFINE_bool(PRINT, False, "", flag_values)


def parse(
    argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS
) -> tuple[Any, list[str]]:
  """Parses all flags; returns the config as the command line changes it, and other arguments.

  Raises `ValueError` for a config that cannot be read, or an override that fits no option.
  """
  flag: Any = flag_values[NAME]
  rest = flag_values(argv, known_only=True)
  if len(flag.value) > 1:
    raise ValueError(f"Give one --{NAME}, got {' and '.join(flag.value)}.")
  (name,) = flag.value
  found = [re.match(rf"--?(?:no)?{NAME}\.([^=]*)", argument) for argument in rest]
  keys = sorted({match[1] for match in found if match}, key=len)  # Sections before their options.
  kinds = {key: config_lib.without_none(config_lib.Config.find_kind(key)) for key in keys}
  packaged.find_config(name)
  try:
    config = load(name)
  except Exception as error:  # Its code may raise anything.
    raise ValueError(explain(error)) from error
  if isinstance(config, ml_collections.ConfigDict) and config.get("name") == "":
    config.name = packaged.name_config(name)
  for key, kind in kinds.items():
    if kind is Any:  # Of a section with any keys.
      try:
        kinds[key] = kind = config_path.get_type(key, config, default_type=object)
      except (KeyError, TypeError) as error:
        parent = f"{NAME}.{key.rpartition('.')[0]}"
        raise ValueError(f"--{NAME}.{key}: the config has no dict {parent}.") from error
    is_boolean = kind in (bool, object)
    flags.DEFINE_multi_string(f"{NAME}.{key}", None, "", flag_values, boolean=is_boolean)
  rest = flag_values(rest)
  flag.given = GivenConfig({}, [f"--{NAME}={name}"])
  for key, kind in kinds.items():
    if (texts := flag_values[f"{NAME}.{key}"].value) is None:
      continue  # It stands after "--".
    value = flag.given.values[key] = _parse(texts, kind, f"--{NAME}.{key}")
    if isinstance(config, ml_collections.ConfigDict):  # Else `accept` refuses it.
      config_path.set_value(key, config, value, accept_new_attributes=True)
    flag.given.arguments.extend(f"--{NAME}.{key}={text}" for text in texts)
  return config, rest


def _parse(texts: Sequence[str], kind: Any, flag: str) -> Any:
  """Returns the value of an option of a type; several texts are entries of a tuple."""
  if tuple in (kind, typing.get_origin(kind)):
    found = map(parse_literal, texts)
    lists = (one if isinstance(one, tuple | list) else [one] for one in found)
    return tuple(itertools.chain.from_iterable(lists))
  text = texts[-1]
  if text == "None":
    return None
  if kind in _PARSERS:
    return parse_text(text, kind, flag)
  value = parse_literal(text)
  if isinstance(value, dict):
    return ml_collections.ConfigDict(value)
  if not isinstance(kind, type) or issubclass(kind, _DICTS):
    raise ValueError(f"{flag} must be a dict, got {text!r}.")
  return value


def parse_text(text: str, kind: Any, flag: str) -> Any:
  """Returns the value of a flag that is a bool, a number or a text."""
  parser, wanted = _PARSERS[kind]
  try:
    return parser.parse(text)
  except ValueError:
    raise ValueError(f"{flag} must be {wanted}, got {text!r}.") from None


def parse_literal(text: str) -> Any:
  """Returns the value of a literal of Python; of any other text, the text."""
  try:
    return ast.literal_eval(text.capitalize() if text in ("true", "false") else text)
  except (SyntaxError, ValueError):
    return text


def explain_flag(error: flags.IllegalFlagValueError) -> str:
  """Returns one line about a flag of absl with a bad value."""
  text = str(error)
  match = re.match(r"flag --(\S+?)=(.*?): ", text, flags=re.DOTALL)
  for parser, wanted in _PARSERS.values():
    if match and flags.FLAGS[match[1]].parser.flag_type() == parser.flag_type() != "string":
      return f"--{match[1]} must be {wanted}, got {match[2]!r}."
  return text


def explain(error: BaseException) -> str:
  """Returns a message on an error in a config file, with its line if known."""
  # A KeyError has its message in quotes, also as the argument of an AttributeError of a
  # `ConfigDict`; others than one argument are an errno, or a line.
  told: object = error
  while isinstance(told, BaseException) and len(told.args) == 1:
    told = told.args[0]
  message = str(told).strip()
  if f"module '{_MODULE}' has no attribute" in message:
    return "The config file has no function get_config()."
  if "get_config() takes 0 positional arguments" in message:
    return "This config has no variants: leave out the colon and what follows."
  if isinstance(error, ImportError) and error.name == "configs":
    message += "; the packaged configs are in bamboo_jax.configs"
  place = ""
  for frame, line in traceback.walk_tb(error.__traceback__):
    if frame.f_globals.get("__name__") == _MODULE:
      place = f"{frame.f_code.co_filename}:{line}: "
      break
  return f"Cannot read the config: {place}{type(error).__name__}: {message}"
