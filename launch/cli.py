"""The start of all commands of this folder, their end, and flags that several have.

A command is a module with a dataclass of flags and `main(flags)`. It has one clear line for
each mistake of the user: a bad flag, config key or value, an unreadable file: the command
prints one line and exits with 2; with 1 if a node of a cluster failed on its own, so that it
may be started again. After SIGINT, SIGTERM, SIGHUP (which `nohup` keeps away)
or SIGUSR1 it exits with 128 and the number of the signal, also with one line; a
command whose output is closed, as by `head`, with 141 and no line. An error in
the user's own code ends with that line too, after the traceback of that code.
Anything else is a bug of ours and shows its traceback, as all errors do with
`--verbosity=1`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import importlib.machinery
import io
import logging as std_logging
import os
import pathlib
import re
import select
import signal
import sys
import threading
import types
import typing
from typing import Any, NoReturn

from absl import app, flags, logging

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import packaged
from bamboo_jax.cli import config_flag, flagset
from bamboo_jax.cli.flagset import flag
from bamboo_jax.experiments import sweep
from bamboo_jax.metrics import plots, progress
from bamboo_jax.recovery import policies
from bamboo_jax.training.record import workdir as workdir_lib
from bamboo_jax.training.setup import accept

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
_CONFIG_HELP = (
    " A name that `bamboo --help` lists, or a file; --config.NAME=VALUE changes an option, and "
    "--print_config shows the config with what differs from the default, and ends."
)


def config(default: str, help_text: str) -> Any:
  """Declares the flag `--config`, a `config.Config`."""
  return flag(default, help_text + _CONFIG_HELP)


def workdir() -> Any:
  """Declares `--workdir` of a command that trains."""
  return flag(
      None,
      "Where checkpoints and metrics go: a folder, or s3://BUCKET/RUN, gs:// or az://.",
      is_needed=True,
      takes_bucket=True,
  )


def device_memory_fraction() -> Any:
  """Declares `--device_memory_fraction`."""
  return flag(None, "Part of the memory of a GPU that each worker takes; several may share it.")


def program_cache(default: str = "bamboo_jax/programs in the cache folder of the user") -> Any:
  """Declares where compiled programs are kept."""
  return flag(
      None,
      f"Folder of compiled programs, which runs and processes share; by default {default}. "
      "Empty: none.",
      may_be_empty=True,
  )


def find_program_cache(folder: str | None) -> str:
  """Returns the folder that the flag names, or the user's default one."""
  return base.find_cache("programs") if folder is None else folder


def figure_format(**use: Any) -> Any:
  """Declares `--figure_format`."""
  return flag(("png",), "Formats of figures, such as png,pdf.", choices=plots.FORMATS, **use)


def find_format_change(formats: tuple[str, ...], config: config_lib.Config) -> dict[str, str]:
  """Returns the option of the config that `--figure_format` sets; {} if not given."""
  if not flagset.is_given("figure_format"):
    return {}
  if not config.metrics.plots:
    flagset.refuse(["figure_format"], "with config.metrics.plots=False")
  return {"metrics.figure_format": ",".join(formats)}


@dataclasses.dataclass(frozen=True)
class PageFlags:
  """A page on the run."""

  page: bool = flag(False, "Serve a page on the run, to this machine only.")
  page_port: int | None = flag(
      None, "Port of that page; by default any free one.", least=0, most=65535
  )

  @property
  def port(self) -> int | None:
    """The port, 0 for any free one; None without a page."""
    return 0 if self.page and self.page_port is None else self.page_port


@dataclasses.dataclass(frozen=True)
class JobFlags:
  """Where independent jobs run; see docs/guides/sweeps.md."""

  num_processes: int | None = flag(None, "Jobs at once; by default one for each core.", least=1)
  dask: str | None = flag(None, "A Dask scheduler, tcp://host:8786; its workers run the jobs.")
  shard: str | None = flag(
      None, "Run only this part of the jobs, such as 2/4.", excludes="merge", needs="workdir"
  )
  merge: int | None = flag(
      None, "Number of shards to merge; no job is run.", least=1, needs="workdir"
  )

  def read(self, workdir: str | None, *, alone: str = "") -> sweep.Where:
    """Returns where jobs run; results are kept below the workdir, if any.

    `alone`: why jobs must run one after the other on this machine, "" if not.
    """
    if alone:
      flagset.refuse(["num_processes", "dask"], alone)
    if self.dask:
      flagset.refuse(["num_processes"], "with --dask")
    return sweep.Where(
        num_processes=1 if alone else self.num_processes,
        dask=self.dask,
        shard=sweep.parse_shard(self.shard) if self.shard else None,
        num_merged=self.merge,
        folder=pathlib.Path(workdir, "jobs") if workdir else None,
    )


def explain_resume() -> str:
  """Returns the hint after an interrupt: how to resume the run in `--workdir`."""
  places: Any = flags.FLAGS["workdir"].value
  place = base.find_place(places[-1]) if places else ""
  if base.is_bucket(place):
    return f"the same command goes on from the last checkpoint in {place}, if there is one"
  saved = workdir_lib.find_saved(place) if place else 0
  if saved:
    return f"the same command goes on from step {saved}, which is saved"
  return "nothing is saved: the same command starts from the beginning"


def run(
    main: Callable[[Any], None],
    *,
    if_interrupted: Callable[[], str] = lambda: "",
    is_node: bool = False,
    is_study: bool = False,
) -> None:
  """Runs `main` as the command of this process, and exits.

  Its argument is annotated with the dataclass of the flags. It may raise `ValueError` and
  `OSError` for mistakes that the user can correct. With `--help` only that is printed.

  Args:
    if_interrupted: Returns a hint to print after an interrupt.
    is_node: Whether an `OSError`, such as a store that is away, is a failure of this node alone.
    is_study: Whether the run of the config is only simulated.
  """
  global _find_hint
  _find_hint = if_interrupted
  kind = next(hint for name, hint in typing.get_type_hints(main).items() if name != "return")

  def guarded(argv: Sequence[str]) -> None:
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)
    try:
      if config_flag.PRINT in flags.FLAGS and flags.FLAGS[config_flag.PRINT].value:
        given: Any = flags.FLAGS[config_flag.NAME].value
        print(_render(given))
      else:
        main(flagset.read(kind, argv[1:]))
      sys.stdout.flush()
    except sweep.ShardEnd as end:
      print(end, flush=True)
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

  flagset.define(kind)
  logging.get_absl_handler().setFormatter(_LineFormatter())
  logging.set_verbosity(logging.ERROR)  # Until the flag is parsed.
  _open_standard_files()
  names = {re.sub("^-+|=.*", "", argument) for argument in sys.argv[1:]}
  if _HELPS & names:
    doc = (sys.modules["__main__"].__doc__ or "").strip()
    print(packaged.locate_pages(f"{doc}\n\n{flagset.render(kind)}"))
    raise SystemExit(0)
  for number in _heard():
    # Also in the background of a script, where an interrupt is ignored.
    signal.signal(number, _interrupt)
  next_hook = sys.unraisablehook
  sys.unraisablehook = functools.partial(_hear_swallowed, next_hook=next_hook)
  try:
    app.run(guarded, flags_parser=functools.partial(parse_flags, is_study=is_study))
  except KeyboardInterrupt as error:
    _end(*error.args or (signal.SIGINT,))


def parse_flags(argv: Sequence[str], *, is_study: bool = False) -> list[str]:
  """Returns the arguments that are not flags; accepts the config, which is then `--config`."""
  try:
    if config_flag.NAME not in flags.FLAGS:
      return flags.FLAGS(list(argv))
    with progress.waiting("reading the config"):  # Its file may import much.
      given, rest = config_flag.parse(argv)
    accepted = accept.accept(given, is_study=is_study)
    refuse_overwritten(accepted.recovery.policy)
    flags.FLAGS[config_flag.NAME].value = accepted
    return rest
  except flags.IllegalFlagValueError as error:  # Of a flag of absl.
    fail(config_flag.explain_flag(error), 2)
  except (flags.Error, ValueError) as error:
    fail(str(error), 2)
  except Exception as error:  # The code of a config may raise anything.
    fail(config_flag.explain(error), 2)


def refuse_overwritten(policy: str | None, swept: Mapping[str, Sequence[Any]] = {}) -> None:
  """Raises `ValueError` if the command line sets an option otherwise than the config's policy.

  `swept` are the values of options that are swept beside it.
  """
  if policy is not None:
    own, when = policies.find(policy), f"with config.recovery.policy={policy!r}, which sets it"
    # The config may say how a policy has replicas.
    differs = lambda k, v: own.get(k, v) != v and k != "redundancy.mode"
    flagset.refuse_keys([k for k, v in config_flag.given().values.items() if differs(k, v)], when)
    texts = [f"--sweep={k}" for k, values in swept.items() for v in values if differs(k, v)]
    flagset.refuse_texts(texts, when)


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
  """Raises `ValueError` if the folder of the file `path` does not exist, or `path` is one."""
  if os.path.isdir(path):
    raise ValueError(f"Cannot write {path!r}: it is a folder.")
  if not os.path.isdir(os.path.dirname(path) or "."):
    raise ValueError(f"Cannot write {path!r}: its folder does not exist.")
