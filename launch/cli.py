"""The start of all commands of this folder, and the flag `--config`.

A command is a module with a dataclass of flags and `main(flags)`. Keys of the
config are those of `configs/default.py`, except in sections of options, which
are checked by their users.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import os
import re
import sys
import typing
from typing import Any

from absl import flags
import ml_collections
from ml_collections.config_flags import config_flags

from bamboo_jax import config as config_lib
from bamboo_jax.base import packaged
from bamboo_jax.cli import command, config_check, flagset
from bamboo_jax.configs import default as default_config
from bamboo_jax.metrics import progress
from bamboo_jax.recovery import policies
from bamboo_jax.training.setup import accept

flags.disclaim_key_flags()
hearing = command.hearing
_PRINT = "print_config"
_CONFIG_HELP = (
    " A name that `bamboo --help` lists, or a file; --config.NAME=VALUE changes an option, and "
    "--print_config shows the config with what differs from the default, and ends."
)


class _Parser(config_flags.ConfigFileFlagParser):  # type: ignore[misc]

  def parse(self, path: str) -> Any:
    """Returns the config of a short name or a path, with its name."""
    found = super().parse(config_check.find(path))
    if isinstance(found, ml_collections.ConfigDict) and found.get("name") == "":
      found.name = packaged.name_config(path)
    return found


def config(default: str | None, help_text: str) -> Any:
  """Declares the flag `--config`, a `config.Config`; None: it must be given."""
  return flagset.flag(default, help_text + _CONFIG_HELP, is_needed=default is None, define=_define)


def _define(name: str, default: str | None, help_text: str) -> None:
  """Defines the flag; the text "None" is None, which `accept` may reject."""
  for kind, parser in config_check.PARSERS.items():
    config_flags.register_flag_parser_for_type(kind, parser)
  holder = config_flags.DEFINE_config_file(
      name, None, help_text, lock_config=False, accept_new_attributes=True
  )
  flags.FLAGS[name].parser = _Parser(name, lock_config=False)
  flags.DEFINE_bool(_PRINT, False, "")
  try:
    check_config_arguments(sys.argv)
  except ValueError:
    return  # `_parse_flags` says it, unless help is asked for.
  flags.set_default(holder, default)  # Parses what the command line overrides.


def run(
    main: Callable[[Any], None],
    *,
    if_interrupted: Callable[[], str] = lambda: "",
    is_node: bool = False,
    is_study: bool = False,
) -> None:
  """Runs `main` as the command of this process, and exits.

  Its argument is annotated with the dataclass of the flags. If it `is_study`, the run of
  the config is only simulated. Errors and the other arguments are as in `command.run`.
  """
  kind = next(hint for name, hint in typing.get_type_hints(main).items() if name != "return")

  def start(argv: Sequence[str]) -> None:
    if _PRINT in flags.FLAGS and flags.FLAGS[_PRINT].value:
      given: Any = flags.FLAGS[flagset.CONFIG].value
      print(_render(given))
    else:
      main(flagset.read(kind, argv[1:]))

  flagset.define(kind)
  doc = (sys.modules["__main__"].__doc__ or "").strip()
  command.run(
      start,
      parse=functools.partial(_parse_flags, is_study=is_study),
      help_text=packaged.locate_pages(f"{doc}\n\n{flagset.render(kind)}\n"),
      if_interrupted=if_interrupted,
      is_node=is_node,
  )


def _parse_flags(argv: Sequence[str], *, is_study: bool) -> list[str]:
  """Returns the arguments that are not flags; suggests names for a bad key."""
  try:
    check_config_arguments(argv)
    with progress.waiting("reading the config"):  # Its file may import much.
      rest = flags.FLAGS(list(argv))
    if flagset.CONFIG in flags.FLAGS:
      given = flags.FLAGS[flagset.CONFIG].value
      accepted = accept.accept(given, is_study=is_study)
      refuse_overwritten(accepted.recovery.policy)
      flags.FLAGS[flagset.CONFIG].value = accepted
    return rest
  except flags.IllegalFlagValueError as error:
    is_file = re.match("flag --config=(?!None: )", str(error))
    explain = config_check.explain if is_file else command.explain_flag
    command.fail(explain(error), 2)
  except (flags.Error, ValueError) as error:
    command.fail(str(error), 2)
  except Exception as error:  # The code of a config may raise anything.
    command.fail(config_check.explain(error), 2)


def refuse_overwritten(policy: str | None, swept: Mapping[str, Sequence[Any]] = {}) -> None:
  """Raises `ValueError` if the command line sets an option otherwise than the config's policy.

  `swept` are the values of options that are swept beside it.
  """
  if policy is not None:
    own, when = policies.find(policy), f"with config.recovery.policy={policy!r}, which sets it"
    # The config may say how a policy has replicas.
    differs = lambda k, v: own.get(k, v) != v and k != "redundancy.mode"
    flagset.refuse_keys([k for k, v in flagset.given_keys().items() if differs(k, v)], when)
    texts = [f"--sweep={k}" for k, values in swept.items() for v in values if differs(k, v)]
    flagset.refuse_texts(texts, when)


def check_config_arguments(argv: Sequence[str]) -> None:
  """Raises `ValueError` unless `argv` has one existing config, with known keys."""
  paths = config_check.find_paths(argv)
  if len(paths) > 1:
    raise ValueError(f"Give one --config, got {' and '.join(paths)}.")
  for path in paths:
    packaged.find_config(path)
  config_check.check_overrides(argv, default_config.get_config(), gone=config_lib.GONE)


def _render(config: config_lib.Config) -> str:
  """Returns assignments for a config file, a line each, with other defaults."""
  lines = []
  for option in config_lib.list_options(config_lib.Config):
    if option.default:
      find = functools.partial(functools.reduce, getattr, option.name.split("."))
      value = find(config)
      default = "" if value == find(config_lib.Config()) else f"  # default: {option.default}"
      lines.append(f"config.{option.name} = {value!r}{default}")
  return "\n".join(lines)


def check_folder(path: str) -> None:
  """Raises `ValueError` if the folder of the file `path` does not exist."""
  folder = os.path.dirname(path) or "."
  if not os.path.isdir(folder) or os.path.isdir(path):
    raise ValueError(f"Cannot write {path!r}: its folder does not exist.")
