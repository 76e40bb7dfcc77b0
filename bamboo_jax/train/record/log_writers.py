"""All that the member that writes writes its steps and events to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from typing import Any

import ml_collections

from bamboo_jax import base
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import logger as logger_lib
from bamboo_jax.metrics import tensorboard
from bamboo_jax.train import environment
from bamboo_jax.train.record import workdir as workdir_lib


class LogWriters:
  """`metrics.jsonl`, and what else is wanted: TensorBoard, logger, callbacks.

  Raises `base.CallbackError` for whatever code of the user raises.
  """

  def __init__(
      self,
      workdir: workdir_lib.Workdir,
      config: ml_collections.ConfigDict,
      *,
      resumed_from_step: int,
      callbacks: Sequence[environment.Callback],
      on_error: Callable[[OSError], None],
  ) -> None:
    """Opens them; lines of steps after `resumed_from_step` are removed."""
    self._lines = jsonl.MetricsWriter(
        workdir.metrics, resumed_from_step=resumed_from_step, on_error=on_error
    )
    self._callbacks = callbacks
    self._events: tensorboard.TensorBoardWriter | None = None
    if config.metrics.tensorboard:
      self._events = tensorboard.TensorBoardWriter(
          workdir.events, resumed_from_step=resumed_from_step
      )
    self._logger: logger_lib.Logger | None = None
    if name := config.metrics.logger:
      with _calling(f"logger {name!r}"):
        self._logger = logger_lib.make_logger(
            name, config, workdir.metrics.parent
        )
    self._what = f"logger {name!r}"

  def write_step(
      self, step: int, shown: Mapping[str, Any], more: Mapping[str, Any]
  ) -> None:
    """Writes the metrics of a step; TensorBoard has those that are shown."""
    metrics = {**shown, **more}
    self._lines.write_step(step, metrics)
    if self._events is not None:
      self._events.write_step(step, shown)
    if self._logger is not None:
      with _calling(self._what):
        self._logger.log(step, dict(metrics))
    for callback in self._callbacks:
      with _calling("callback"):
        callback(step, dict(metrics))

  def write_event(
      self, event: str, *, step: int, values: Mapping[str, Any]
  ) -> None:
    """Writes an event, such as "recovery"."""
    self._lines.write_event(event, step=step, values=values)
    if self._logger is not None:
      with _calling(self._what):
        self._logger.event(event, step, dict(values))

  def keep(self, line: jsonl.Line) -> None:
    """Writes a line to `metrics.jsonl` again, from which it was removed."""
    self._lines.write_step(line["step"], line)

  def forget_after(self, step: int) -> None:
    """Removes later steps, which will be run again, from `metrics.jsonl`."""
    self._lines.forget_after(step)

  def close(self) -> None:
    """Closes all."""
    self._lines.close()
    if self._events is not None:
      self._events.close()
    if self._logger is not None:
      with _calling(self._what):
        self._logger.close()


@contextlib.contextmanager
def _calling(what: str) -> Iterator[None]:
  try:
    yield
  except Exception as error:  # Whatever the code of the user raises.
    raise base.CallbackError(
        f"The {what} raised {type(error).__name__}: {error}"
    ) from error
