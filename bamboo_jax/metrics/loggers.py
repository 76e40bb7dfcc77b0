"""Loggers of a run: `config.metrics.logger`, by name or "file.py:function".

Those of the package, CSV, TensorBoard and W&B, run in threads, so that no step waits for one.
A logger that raises, or cannot be made, is dropped: training does not end for a tool that
shows it.
"""

from collections.abc import Callable, Mapping
import csv
import importlib.util
import numbers
import os
import pathlib
import queue
import secrets
import threading
from typing import Any, Protocol

from bamboo_jax import base
from bamboo_jax.base import extras, threads

# Names of those of the package, and the module that each needs.
BUILT_IN = {"csv": "csv", "tensorboard": "tensorboardX", "wandb": "wandb"}
_METHODS = ("log", "event", "close")
_CLOSE_SECS = 15.0  # For what is still to be sent at the end.
_FLUSH_SECS = 5  # At most so much of TensorBoard's is lost if the writing member dies.
_PROJECT = "bamboo"  # Unless WANDB_PROJECT names one.
_CSV, _WANDB_ID = FILES = ("metrics.csv", "wandb_id")  # With which the next process goes on.
_INIT_SECS = 10.0  # For an answer of W&B's server, in the thread of the logger.


class Logger(Protocol):
  """Gets what `metrics.jsonl` gets, in the process that writes it.

  In a cluster this is the member that hosts the lowest training node. If it
  dies, the next one makes a logger of its own and continues.
  """

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Takes the metrics of a committed step, by name; steps count from 1.

    After a rollback to a checkpoint, steps are repeated.
    """

  def event(self, name: str, step: int, values: Mapping[str, Any]) -> None:
    """Takes an event, such as "recovery", "join" or "eval"."""

  def close(self) -> None:
    """Ends the log; nothing follows."""


def parse_names(text: str | None) -> list[str]:
  """Returns the names in `config.metrics.logger`, which has commas between.

  Raises `ValueError` for one that is unknown, `base.MissingExtraError` if its
  extra is not installed.
  """
  found = [name.strip() for name in (text or "").split(",") if name.strip()]
  for name in found:
    if found.count(name) > 1:
      raise ValueError(f"config.metrics.logger must name {name!r} once, got {text!r}.")
    if base.is_function_name(name):
      base.find_function(name, what="logger")
    elif name not in BUILT_IN:
      raise ValueError(
          base.suggest(name, BUILT_IN, what="logger") + ' One of your own is "file.py:function".'
      )
    elif importlib.util.find_spec(BUILT_IN[name]) is None:
      raise base.MissingExtraError(
          f"config.metrics.logger={name!r} needs an extra: pip install " f"'bamboo_jax[{name}]'."
      )
  return found


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
  """Returns the numbers among `values`, also those one level down."""
  found: dict[str, float] = {}
  for name, value in values.items():
    if isinstance(value, Mapping):
      inner = numbers_of(value)
      found |= {f"{name}/{k}": v for k, v in inner.items()}
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
      found[name] = float(value)
  return found


def make_logger(name: str, config: Any, workdir: str | os.PathLike[str]) -> Logger:
  """Returns the logger of a user's function.

  Args:
    name: The function, as "file.py:function".
    config: The config of the run, its first argument.
    workdir: The folder of the run, its second argument.

  Raises:
    ValueError: There is no such function, or it does not return a `Logger`.
  """
  made = base.find_function(name, what="logger")(config, os.fspath(workdir))
  absent = [m for m in _METHODS if not callable(getattr(made, m, None))]
  if absent:
    raise ValueError(
        f"Logger {name!r} must have the methods {', '.join(_METHODS)}; "
        f"{type(made).__name__} lacks {', '.join(absent)}."
    )
  logger: Logger = made
  return logger


class Background:
  """A `Logger` around another one, made by `make` in its thread.

  `make(step)` is called at the start and after each `rewind`. It removes what
  was logged after `step`, by an earlier process or before a rollback.
  """

  def __init__(
      self, name: str, make: Callable[[int], Logger], *, step: int, close_secs: float = _CLOSE_SECS
  ) -> None:
    self._name, self._make, self._close_secs = name, make, close_secs
    self._calls: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    self._ended = threading.Event()
    self._error = ""
    threads.call_beside(self._run, step, name=f"logger {name}")

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """See `Logger`; does not block."""
    self._put("log", step, metrics)

  def event(self, name: str, step: int, values: Mapping[str, Any]) -> None:
    self._put("event", name, step, values)

  def rewind(self, step: int) -> None:
    """Voids the steps after `step`, which will be run again."""
    self._put("rewind", step)

  def close(self) -> None:
    """Ends the log; blocks for at most `close_secs`."""
    self._put("close")
    if not self._ended.wait(self._close_secs):
      self._drop(f"it has not ended in {self._close_secs:g} s")

  def take_error(self) -> str:
    """Returns why the logger was dropped, in a line; "" if there is no news."""
    error, self._error = self._error, ""
    return error

  def _put(self, *call: Any) -> None:
    if not self._ended.is_set():
      self._calls.put(call)

  def _drop(self, why: str) -> None:
    self._error = f"No more lines for logger {self._name}: {why.rstrip('.')}"

  def _run(self, step: int) -> None:
    try:
      try:
        logger = self._make(step)
      except SystemError:
        # CPython 3.11 may raise it if two threads parse Python code at once, as
        # imports of W&B and JAX do ("AST constructor recursion depth").
        logger = self._make(step)
      while (call := self._calls.get())[0] != "close":
        if call[0] == "rewind":
          logger.close()
          logger = self._make(call[1])
        else:
          getattr(logger, call[0])(*call[1:])
      logger.close()
    except (Exception, SystemExit) as error:  # Anything a tool may raise.
      self._drop(" ".join(str(error).split()) or type(error).__name__)
    finally:
      self._ended.set()


class CsvFile:
  """A `Logger` of `metrics.csv`; columns are the numbers of the first step."""

  def __init__(self, workdir: pathlib.Path, step: int) -> None:
    """Goes on after `step`; removes later rows."""
    self._path = workdir / _CSV
    self._columns: list[str] = []
    if self._path.exists() and (text := self._path.read_text()):  # Else no step has ended.
      head, *rows = text.splitlines(keepends=True)
      self._columns = next(csv.reader([head]))
      kept = [row for row in rows if int(row.split(",", 1)[0]) <= step]
      base.write_atomically(self._path, "".join([head, *kept]))
    self._file = open(self._path, "a", buffering=1, newline="")

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    row = {"step": step, **numbers_of(metrics)}
    is_first = not self._columns
    self._columns = self._columns or list(row)
    writer = csv.DictWriter(self._file, self._columns, extrasaction="ignore", lineterminator="\n")
    if is_first:
      writer.writeheader()
    writer.writerow(row)

  def event(self, name: str, step: int, values: Mapping[str, Any]) -> None:
    """Writes nothing: a table has steps only."""

  def close(self) -> None:
    self._file.close()


class TensorBoard:
  """A `Logger`: scalars `train/NAME` and `eval/NAME`, in `events`."""

  def __init__(self, workdir: pathlib.Path, step: int) -> None:
    """Goes on after `step`; later scalars of others are hidden.

    Raises `base.MissingExtraError` if the extra is not installed.
    """
    tensorboardX = extras.load("tensorboardX", extra="tensorboard", what="Events for TensorBoard")
    self._writer = tensorboardX.SummaryWriter(
        str(workdir / "events"), purge_step=step + 1 if step else None, flush_secs=_FLUSH_SECS
    )

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    self._write("train", step, metrics)

  def event(self, name: str, step: int, values: Mapping[str, Any]) -> None:
    """Writes the means of evaluations."""
    if name == "eval":
      self._write(name, step, values)

  def close(self) -> None:
    self._writer.close()

  def _write(self, group: str, step: int, values: Mapping[str, Any]) -> None:
    for name, value in numbers_of(values).items():
      self._writer.add_scalar(f"{group}/{name}", value, step)


class WandbRun:
  """A `Logger`; evaluations are metrics, and recoveries are counted.

  All processes that write a run, one after another, continue one run there: its name is kept in
  the workdir. Steps are a metric, as a run of W&B only counts upwards, and training may go back to
  a checkpoint. Project, account, and whether to send or keep (WANDB_MODE=offline) are those of
  W&B's environment variables.
  """

  def __init__(self, workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Continues the run of a workdir, or begins it.

    Raises `base.MissingExtraError` if the extra is not installed, and whatever
    W&B raises without account or network.
    """
    wandb = extras.load("wandb", extra="wandb", what="A run of W&B")
    path = workdir / _WANDB_ID
    if not path.exists():
      base.write_atomically(path, secrets.token_hex(8) + "\n")
    settings = wandb.Settings(console="off", silent=True, init_timeout=_INIT_SECS)
    self._run = wandb.init(
        project=settings.project or _PROJECT,
        name=workdir.resolve().name,
        id=path.read_text().strip(),
        resume="allow",
        dir=str(workdir),
        config=dict(config),
        settings=settings,
    )
    self._run.define_metric("step")
    self._run.define_metric("*", step_metric="step")
    self._num_recoveries = 0

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    self._run.log({"step": step, **numbers_of(metrics)})

  def event(self, name: str, step: int, values: Mapping[str, Any]) -> None:
    """Logs evaluations as `eval/NAME`, and the number of recoveries."""
    if name == "eval":
      shown = numbers_of(values)
      self._run.log({"step": step} | {f"eval/{k}": v for k, v in shown.items()})
    elif name == "recovery":
      self._num_recoveries += 1
      self._run.log({"step": step, "recoveries": self._num_recoveries})

  def close(self) -> None:
    self._run.finish()
