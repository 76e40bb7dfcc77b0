"""TensorBoard events, behind the extra `tensorboard`."""

from collections.abc import Mapping
import pathlib
from typing import Any

from bamboo_jax.base import extras
from bamboo_jax.metrics import logger as logger_lib

_FLUSH_SECS = 5  # At most so much is lost if the writing member dies.


class TensorBoard:
  """A `logger.Logger`: scalars `train/NAME` and `eval/NAME`, in `events`."""

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
    for name, value in logger_lib.numbers_of(values).items():
      self._writer.add_scalar(f"{group}/{name}", value, step)
