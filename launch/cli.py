"""What all commands share: one clear line for what the user got wrong.

A misspelt flag or config key, a value that does not fit, a file that cannot be
read: the command prints one line and exits with 2. An interrupt exits with 130.
Anything else is a bug of ours and shows its traceback, as all errors do with
`--verbosity=1`.
"""

from collections.abc import Callable, Sequence
import os
import re
import socket
import sys
from typing import Any

from absl import app
from absl import flags
from absl import logging


def check_no_arguments(argv: Sequence[str]) -> None:
  """Raises `app.UsageError` if there are arguments that are not flags."""
  if len(argv) > 1:
    raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")


def free_port() -> int:
  """Returns a port of the loopback interface that is free now."""
  with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    return listener.getsockname()[1]


def run(main: Callable[[Sequence[str]], Any]) -> None:
  """Runs `main` as the command of this process, and exits."""

  def guarded(argv: Sequence[str]) -> None:
    try:
      main(argv)
    except (ValueError, OSError) as error:
      if logging.get_verbosity() >= logging.DEBUG:
        raise
      _fail(f"{error} (traceback: --verbosity=1)", 2)
    except KeyboardInterrupt:
      _fail(
          "interrupted; the same command goes on from the last checkpoint", 130
      )

  flags.FLAGS.set_default("verbosity", logging.WARNING)
  app.run(guarded, flags_parser=_parse_flags)


def _parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses flags; a misspelt config key gets the closest names."""
  try:
    return flags.FLAGS(list(argv))
  except (
      flags.Error,
      AttributeError,
      KeyError,
      TypeError,
      ValueError,
  ) as error:
    _fail(_one_line(error), 2)
  except (FileNotFoundError, ImportError) as error:
    _fail(f"cannot read the config: {error}", 2)


def _one_line(error: BaseException) -> str:
  text = error.args[0] if error.args else str(error)
  return re.sub(r"\s+", " ", str(text)).strip()


def _fail(message: str, code: int) -> None:
  """Prints one line and ends the process without waiting for threads."""
  sys.stdout.flush()
  print(f"error: {_one_line(ValueError(message))}", file=sys.stderr, flush=True)
  os._exit(code)
