"""The start of all commands of this folder; see `bamboo_jax.cli.command`."""

from collections.abc import Callable, Sequence
import functools
import os
import re
import sys
from typing import Any

from absl import flags

from bamboo_jax.base import packaged
from bamboo_jax.cli import command, config_check
from bamboo_jax.launch import config_flag
from bamboo_jax.metrics import progress
from bamboo_jax.train.setup import accept

find_arguments = command.find_arguments
hearing = command.hearing


def check_no_arguments(arguments: Sequence[str]) -> None:
  """Raises `ValueError` if there are arguments that are not flags."""
  if arguments:
    raise ValueError(f"Unexpected arguments: {' '.join(arguments)}")


def check_folder(path: str) -> None:
  """Raises `ValueError` if the folder of the file `path` does not exist."""
  folder = os.path.dirname(path) or "."
  if not os.path.isdir(folder) or os.path.isdir(path):
    raise ValueError(f"Cannot write {path!r}: its folder does not exist.")


def run(
    main: Callable[..., Any],
    *,
    if_interrupted: Callable[[], str] = lambda: "",
    own_keys: bool = False,
    takes_arguments: bool = False,
    is_node: bool = False,
) -> None:
  """Runs `main` as the command of this process, and exits.

  With `takes_arguments`, `main` gets the arguments that are not flags. Errors
  and other arguments are as in `command.run`. With `own_keys` the config has
  keys of its own rather than those of `configs/default.py`.
  """

  def start(argv: Sequence[str]) -> None:
    if config_flag.is_printed():
      print(config_flag.render(flags.FLAGS["config"].value))
    elif takes_arguments:
      main(argv[1:])
    else:
      check_no_arguments(argv[1:])
      main()

  started = sys.modules["__main__"]  # Help begins with its docstring.
  started.__doc__ = packaged.locate_pages(started.__doc__ or "")
  parse = functools.partial(_parse_flags, own_keys=own_keys)
  command.run(start, parse=parse, if_interrupted=if_interrupted, is_node=is_node)


def _parse_flags(argv: Sequence[str], *, own_keys: bool) -> list[str]:
  """Returns the arguments that are not flags; suggests names for a bad key."""
  try:
    config_flag.check_arguments(argv, own_keys=own_keys)
    if f"--{config_flag.PRINT}" in argv and "workdir" in flags.FLAGS:
      argv = [argv[0], "--workdir=", *argv[1:]]  # Else it would be needed.
    with progress.waiting("reading the config"):  # Its file may import much.
      rest = flags.FLAGS(list(argv))
    if "config" in flags.FLAGS:
      flag = flags.FLAGS["config"]
      if own_keys:
        accept.check_own(flag.value)
      else:
        flag.value = accept.accept(flag.value)
    return rest
  except flags.IllegalFlagValueError as error:
    is_file = re.match("flag --config=(?!None: )", str(error))
    explain = config_check.explain if is_file else command.explain_flag
    command.fail(explain(error), 2)
  except (flags.Error, ValueError) as error:
    command.fail(str(error), 2)
  except Exception as error:  # The code of a config may raise anything.
    command.fail(config_check.explain(error), 2)
