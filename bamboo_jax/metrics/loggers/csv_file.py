"""The metrics of steps as a table, `metrics.csv`."""

from collections.abc import Mapping
import csv
import pathlib
from typing import Any

from bamboo_jax import base
from bamboo_jax.metrics import logger as logger_lib


class CsvFile:
  """A `logger.Logger`; columns are the numbers of the first step."""

  def __init__(self, workdir: pathlib.Path, step: int) -> None:
    """Goes on after `step`; removes later rows."""
    self._path = workdir / "metrics.csv"
    self._columns: list[str] = []
    if self._path.exists():
      head, *rows = self._path.read_text().splitlines(keepends=True)
      self._columns = head.strip().split(",")
      kept = [row for row in rows if int(row.split(",", 1)[0]) <= step]
      base.write_atomically(self._path, "".join([head, *kept]))
    self._file = open(self._path, "a", buffering=1, newline="")

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    row = {"step": step, **logger_lib.numbers_of(metrics)}
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
