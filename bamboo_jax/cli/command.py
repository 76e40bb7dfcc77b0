"""Commands: one clear line for what the user got wrong.

A bad flag, config key or value, an unreadable file: the command prints one line
and exits with 2. An interrupt exits with 130, a termination with 143, also with
one line; one whose reader is gone, such as `head`, with 141 and none. Anything
else is a bug of ours and shows its traceback, as all errors do with
`--verbosity=1`.
"""

from collections.abc import Callable, Collection, Sequence
import contextlib
import functools
import logging as std_logging
import os
import re
import select
import signal
import sys
import threading
from typing import Any, NoReturn, TextIO

from absl import app
from absl import flags
from absl import logging

from bamboo_jax import base

_ENDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_PATIENCE_SECS = 30.0  # That an interrupted command has to tidy up.
_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def run(
    main: Callable[[Sequence[str]], Any],
    *,
    if_interrupted: str | None = None,
    parse: Callable[[Sequence[str]], list[str]],
) -> None:
  """Runs `main` as the command of this process, and exits.

  `main` gets the arguments that are not flags, as `parse` returns them, and may
  raise `ValueError` and `OSError` for what the user can change.
  `if_interrupted` is a hint to print after an interrupt.
  """

  def guarded(argv: Sequence[str]) -> None:
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)
    try:
      main(argv)
      sys.stdout.flush()
    except (ValueError, OSError) as error:
      if isinstance(error, BrokenPipeError) and _is_unread(sys.stdout):
        os._exit(128 + signal.SIGPIPE)  # Its reader has seen enough.
      if isinstance(error, base.EndedError):
        fail(f"{error}", 2)  # A traceback would lead nowhere.
      if logging.get_verbosity() >= logging.DEBUG:
        raise
      fail(f"{_describe(error)} (traceback: --verbosity=1)", 2)

  def end(number: int) -> NoReturn:
    hint = f"; {if_interrupted}" if if_interrupted else ""
    fail(_ENDS[number] + hint, 128 + number)

  def stop(number: int, unused_frame: object) -> NoReturn:
    _start_watchdog(functools.partial(end, number))
    raise KeyboardInterrupt(number)

  logging.get_absl_handler().setFormatter(_LineFormatter())
  logging.set_verbosity(logging.ERROR)  # Until the flag is parsed.
  for number in _ENDS:
    # Also in the background of a script, where an interrupt is ignored.
    signal.signal(number, stop)
  try:
    app.run(guarded, flags_parser=parse)
  except KeyboardInterrupt as error:
    terminated = error.args == (signal.SIGTERM,)
    end(signal.SIGTERM if terminated else signal.SIGINT)


def find_arguments(names: Collection[str], argv: Sequence[str]) -> list[str]:
  """Returns those of `argv`, flags only, that set the flags `names`."""
  found: list[str] = []
  takes_next = False
  for argument in argv:
    if not re.match(r"-+[a-zA-Z]", argument):  # The value of a flag.
      found += [argument] * takes_next
      continue
    name = argument.lstrip("-").partition("=")[0].partition(".")[0]
    takes_next = name in names or name.removeprefix("no") in names
    found += [argument] * takes_next
  return found


def _start_watchdog(end: Callable[[], NoReturn]) -> None:
  """Ends the process even if what it interrupts never returns.

  An interrupt may come between taking a lock and noting that it is held.
  """
  watchdog = threading.Timer(_PATIENCE_SECS, end)
  watchdog.daemon = True
  watchdog.start()


class _LineFormatter(std_logging.Formatter):

  def format(self, record: std_logging.LogRecord) -> str:
    """Returns a line such as "warning: ..."."""
    return f"{record.levelname.lower()}: {super().format(record)}"


def explain_flag(error: flags.IllegalFlagValueError) -> str:
  """Returns one line about a flag with a bad value."""
  message = str(error)
  match = re.match(r"flag --(\S+?)=(.*?): ", message, flags=re.DOTALL)
  name, value = match.groups() if match else ("", "")
  if message.endswith("must have a value other than None."):
    return f"The flag --{name} is needed."
  kind = name in flags.FLAGS and flags.FLAGS[name].parser.flag_type()
  if kind in _TYPES and re.search("literal|convert|Non-", message):
    return f"--{name} must be {_TYPES[kind]}, got {value!r}."
  return message


def _describe(error: Exception) -> str:
  """Returns an error as a sentence for somebody who does not program."""
  if isinstance(error, OSError) and error.strerror and error.filename:
    return f"{error.filename}: {error.strerror}."
  return str(error)


def _is_unread(stream: TextIO) -> bool:
  """Returns whether a stream is a pipe that nobody reads any more."""
  poll = select.poll()
  poll.register(stream, 0)
  return any(event & select.POLLERR for _, event in poll.poll(0))


def fail(message: str, code: int) -> NoReturn:
  """Prints one line and ends the process without waiting for threads."""
  line = re.sub(r"\s+", " ", message).strip()
  with contextlib.suppress(OSError):  # Nobody may be reading.
    sys.stdout.flush()
  with contextlib.suppress(OSError):
    print(f"error: {line}", file=sys.stderr, flush=True)
  os._exit(code)
