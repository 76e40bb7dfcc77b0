"""TensorBoard events, behind the extra `tensorboard`."""

from collections.abc import Mapping
import numbers
import os
from typing import Any

from bamboo_jax.base import extras


class TensorBoardWriter:
  """Writes the numbers among a run's metrics as TensorBoard scalars.

  Scalars that an earlier process wrote for steps after `resumed_from_step` are
  hidden. Raises `base.MissingExtraError` if the extra is not installed.
  """

  def __init__(
      self, directory: str | os.PathLike[str], *, resumed_from_step: int = 0
  ) -> None:
    tensorboardX = extras.load(
        "tensorboardX", extra="tensorboard", what="Events for TensorBoard"
    )
    purge_step = resumed_from_step + 1 if resumed_from_step else None
    self._writer = tensorboardX.SummaryWriter(
        os.fspath(directory), purge_step=purge_step
    )

  def write_step(
      self, step: int, values: Mapping[str, Any], *, group: str = "train"
  ) -> None:
    """Writes each number in `values` as the scalar `group/name`."""
    for name, value in values.items():
      if isinstance(value, numbers.Real) and not isinstance(value, bool):
        self._writer.add_scalar(f"{group}/{name}", float(value), step)

  def close(self) -> None:
    """Flushes and closes the file."""
    self._writer.close()
