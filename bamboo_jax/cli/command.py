"""Commands: one clear line for each mistake of the user.

A bad flag, config key or value, an unreadable file: the command prints one line
and exits with 2; with 1 if a node of a cluster failed on its own, so that it
may be started again. After SIGINT, SIGTERM, SIGHUP (which `nohup` keeps away)
or SIGUSR1 it exits with 128 and the number of the signal, also with one line; a
command whose output is closed, as by `head`, with 141 and no line. An error in
the user's own code ends with that line too, after the traceback of that code.
Anything else is a bug of ours and shows its traceback, as all errors do with
`--verbosity=1`.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import importlib.machinery
import io
import logging as std_logging
import os
import re
import select
import signal
import sys
import threading
import types
from typing import Any, NoReturn

from absl import app, flags, logging

from bamboo_jax import base

_ENDS: dict[int, str] = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGUSR1: "told to end by SIGUSR1",  # As schedulers may announce it.
    signal.SIGHUP: "hung up",  # Its terminal or connection is closed.
}
_REPEATED = {signal.SIGUSR1, signal.SIGHUP}  # A second one says nothing new.
_ASKED = "finishing and saving the step; a second signal ends at once"
_PATIENCE_SECS = 30.0  # For the clean-up of an interrupted command.
_AGAIN_SECS = 0.05  # Until an interrupt that came at a bad moment is repeated.
_CLOSE_MS = 200  # For the end of what read the output, such as `tee`.
_HELPS = {"?", "help", "helpshort", "helpfull", "helpxml"}

_find_hint: Callable[[], str] = lambda: ""  # Of `run`.


def run(
    main: Callable[[Sequence[str]], Any],
    *,
    if_interrupted: Callable[[], str] = lambda: "",
    parse: Callable[[Sequence[str]], list[str]],
    help_text: str,
    is_node: bool = False,
) -> None:
  """Runs `main` as the command of this process, and exits.

  `main` gets the arguments that are not flags, as `parse` returns them, and may
  raise `ValueError` and `OSError` for mistakes that the user can correct.
  With the flag `--help` only `help_text` is printed.
  `if_interrupted` returns a hint to print after an interrupt. If it `is_node`,
  an `OSError`, such as a store that is away, is a failure of this node alone.
  """
  global _find_hint
  _find_hint = if_interrupted

  def guarded(argv: Sequence[str]) -> None:
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)
    try:
      main(argv)
      sys.stdout.flush()
    except Exception as error:
      own = base.render_own_traceback(error)
      if not own and not isinstance(error, (ValueError, OSError)):
        raise
      if isinstance(error, BrokenPipeError) and _is_lost(1):
        base.remove_temporary()
        os._exit(128 + signal.SIGPIPE)  # Its reader has seen enough.
      text = f"{base.describe_error(error)} (traceback: --verbosity=1)"
      has_traceback = True
      if isinstance(error, base.EndedError):  # Its own traceback would lead nowhere.
        text, has_traceback = f"{error}", error.__cause__ is not None
      if has_traceback and logging.get_verbosity() >= logging.DEBUG:
        raise
      is_local = isinstance(error, base.NodeFailedError) or is_node and isinstance(error, OSError)
      fail(text, 1 if is_local else 2, own=own)

  logging.get_absl_handler().setFormatter(_LineFormatter())
  logging.set_verbosity(logging.ERROR)  # Until the flag is parsed.
  _open_standard_files()
  names = {re.sub("^-+|=.*", "", argument) for argument in sys.argv[1:]}
  if _HELPS & names:
    print(help_text, end="")
    raise SystemExit(0)
  for number in _heard():
    # Also in the background of a script, where an interrupt is ignored.
    signal.signal(number, _interrupt)
  next_hook = sys.unraisablehook
  sys.unraisablehook = functools.partial(_hear_swallowed, next_hook=next_hook)
  try:
    app.run(guarded, flags_parser=parse)
  except KeyboardInterrupt as error:
    _end(*error.args or (signal.SIGINT,))


@contextlib.contextmanager
def hearing(ask: Callable[[], bool], *, tidies: bool = False) -> Iterator[None]:
  """Makes the first signal request a graceful stop, in a `with` block.

  The first signal calls `ask`. If it returns True, `main` goes on to finish its
  work, and the block then raises `KeyboardInterrupt`, for the exit status. If
  it returns False, there is no work to finish, and the signal interrupts at
  once. A second SIGINT or SIGTERM ends the process at once, or if it `tidies`,
  raises `KeyboardInterrupt`.
  """
  heard: list[int] = []

  def hear(number: int, frame: types.FrameType | None) -> None:
    if not ask():
      return _interrupt(number, frame)
    if number not in _REPEATED and {*heard} - _REPEATED:
      return _interrupt(number, frame) if tidies else _end(number)
    if number == signal.SIGHUP:
      _leave_terminal()
    if not heard:
      line = f"{_ENDS[number]}: {_ASKED}\n"
      os.write(2, line.encode())
    heard.append(number)

  before = {number: signal.signal(number, hear) for number in _heard()}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  if heard:
    raise KeyboardInterrupt(heard[0])


def _heard() -> list[int]:
  """Returns the signals of `_ENDS` but for SIGHUP under `nohup`."""
  is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
  return [n for n in _ENDS if n != signal.SIGHUP or not is_ignored]


def _interrupt(number: int, frame: types.FrameType | None) -> None:
  if number == signal.SIGHUP:
    _leave_terminal()
  # An interrupt may come between acquiring a lock and recording that it is held: then the
  # interrupted code never returns.
  watchdog = threading.Timer(_PATIENCE_SECS, _end, (number,))
  watchdog.daemon = True
  watchdog.start()
  _raise(number, frame)


def _raise(number: int, frame: types.FrameType | None) -> None:
  """Raises `KeyboardInterrupt`; not while a module in C or C++ is initialised.

  Such a module may crash (jaxlib does), or take the error for one of its own.
  """
  while frame is not None:
    loader = frame.f_locals.get("self")
    if isinstance(loader, importlib.machinery.ExtensionFileLoader):
      return _raise_later(number)
    frame = frame.f_back
  raise KeyboardInterrupt(number)


def _raise_later(number: int) -> None:
  # By an alarm: only signals can raise in the main thread.
  signal.signal(signal.SIGALRM, lambda _, frame: _raise(number, frame))
  signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECS)


def _hear_swallowed(unraisable: Any, *, next_hook: Callable[[Any], object]) -> None:
  """Repeats an interrupt that Python has dropped.

  It does so if it comes in a callback, such as that of JAX at each collection
  of garbage, or in a `__del__`.
  """
  error = unraisable.exc_value
  if isinstance(error, KeyboardInterrupt):
    _raise_later(*error.args or (signal.SIGINT,))
  else:
    next_hook(unraisable)


def _leave_terminal() -> None:
  """Replaces outputs that have lost their reader: to write there would fail."""
  for output in (1, 2):
    if _is_lost(output, _CLOSE_MS):
      nothing = os.open(os.devnull, os.O_WRONLY)
      os.dup2(nothing, output)
      os.close(nothing)


def _open_standard_files() -> None:
  """Opens those that are closed, so that no other file gets their number."""
  for file in range(3):
    try:
      os.fstat(file)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # Gets the lowest free number.
  for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, mode))
  if isinstance(raw := getattr(sys.stdout, "buffer", None), io.RawIOBase):
    # PYTHONUNBUFFERED: lines that a full disk rejects would be lost in silence.
    buffered = io.BufferedWriter(raw)
    sys.stdout = io.TextIOWrapper(buffered, encoding=sys.stdout.encoding, line_buffering=True)


def _end(number: int, unused_frame: object = None) -> NoReturn:
  hint = _find_hint()
  fail(_ENDS[number] + (f"; {hint}" if hint else ""), 128 + number)


class _LineFormatter(std_logging.Formatter):

  def format(self, record: std_logging.LogRecord) -> str:
    """Returns a line such as "warning: ..."."""
    return f"{record.levelname.lower()}: {super().format(record)}"


def _is_lost(output: int, wait_ms: int = 0) -> bool:
  """Returns whether an output has lost its reader, at the latest after a while."""
  poll = select.poll()
  poll.register(output, 0)
  return bool(poll.poll(wait_ms))


def fail(message: str, code: int, *, own: str = "") -> NoReturn:
  """Prints one line and ends the process without waiting for threads.

  Before it, lines on the user's `own` code.
  """
  line = re.sub(r"\s+", " ", message).strip()
  with contextlib.suppress(OSError):  # The reader may have closed the pipe.
    sys.stdout.flush()
  with contextlib.suppress(OSError):
    print(f"{own}error: {line}", file=sys.stderr, flush=True)
  base.remove_temporary()
  os._exit(code)
