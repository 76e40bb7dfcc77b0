"""The log, loggers and callbacks of the member that writes them."""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

from bamboo_jax import base, config as config_lib
from bamboo_jax.metrics import jsonl, logger as logger_lib
from bamboo_jax.metrics.loggers import background, csv_file, tensorboard, wandb_run
from bamboo_jax.train import environment, failures as failures_lib
from bamboo_jax.train.record import workdir as workdir_lib


class LogWriters:
  """Writes steps and events to `metrics.jsonl`, loggers and callbacks.

  Any exception of the user's code goes to `failures`, and that code is not
  called again; a logger of the package that fails is dropped, with a warning.
  """

  def __init__(
      self,
      workdir: workdir_lib.Workdir,
      config: config_lib.Config,
      *,
      resumed_from_step: int,
      callbacks: Sequence[environment.Callback],
      on_error: Callable[[OSError], None],
      warn: Callable[[str], None],
      failures: failures_lib.Failures,
  ) -> None:
    """Opens them; loggers forget steps after `resumed_from_step`."""
    self._lines = jsonl.MetricsWriter(workdir.metrics, on_error=on_error)
    self._callbacks, self._warn = [*callbacks], warn
    self._failures = failures
    self._background: list[background.Background] = []
    self._own: dict[str, logger_lib.Logger] = {}  # By what each is called.
    folder = workdir.metrics.parent
    make: dict[str, Callable[[int], logger_lib.Logger]] = {
        "csv": functools.partial(csv_file.CsvFile, folder),
        "tensorboard": functools.partial(tensorboard.TensorBoard, folder),
        "wandb": lambda step: wandb_run.WandbRun(folder, config.to_dict()),
    }
    for name in logger_lib.parse_names(config.metrics.logger):
      if name in make:
        beside = background.Background(name, make[name], step=resumed_from_step)
        self._background.append(beside)
        continue
      what = f"logger {name!r}"
      self._call_own(what, self._add, what, name, config, folder)

  def write_step(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Writes the metrics of a step."""
    self._lines.write_step(step, metrics)
    self._call("log", step, dict(metrics))
    for callback in [*self._callbacks]:
      if not self._call_own("callback", callback, step, dict(metrics)):
        self._callbacks.remove(callback)
    self._tell_errors()

  def write_event(self, event: str, *, step: int, values: Mapping[str, Any]) -> None:
    """Writes an event, such as "recovery"."""
    self._lines.write_event(event, step=step, values=values)
    self._call("event", event, step, dict(values))

  def rewind(self, step: int) -> None:
    """Tells loggers that later steps will be run again."""
    for logger in self._background:
      logger.rewind(step)

  def finish(self) -> None:
    """Ends the loggers of the package; blocks until their lines are sent."""
    for logger in self._background:
      logger.close()
    self._tell_errors()

  def close(self) -> None:
    """Closes the log, loggers and callbacks."""
    self._lines.close()
    self._call("close")

  def _tell_errors(self) -> None:
    for logger in self._background:
      if error := logger.take_error():
        self._warn(f"{error}. Training continues.")

  def _call(self, method: str, *arguments: Any) -> None:
    for logger in self._background:
      getattr(logger, method)(*arguments)
    for what, logger in [*self._own.items()]:
      if not self._call_own(what, getattr(logger, method), *arguments):
        del self._own[what]

  def _add(self, what: str, *arguments: Any) -> None:
    self._own[what] = logger_lib.make_logger(*arguments)

  def _call_own(self, what: str, call: Callable[..., Any], *arguments: Any) -> bool:
    """Calls code of the user; returns False if it raises."""
    try:
      call(*arguments)
      return True
    except Exception as error:  # Whatever the code of the user raises.
      raised = base.CallbackError(f"The {what} raised {base.describe_error(error)}")
      raised.__cause__ = error
      self._failures.add(raised, f"{raised}")
      return False
