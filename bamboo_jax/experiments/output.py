"""Estimates from many runs, and `summary.csv`."""

from collections.abc import Iterable, Mapping, Sequence
import math
import pathlib
import statistics
from typing import Any, NamedTuple

from scipy import special

from bamboo_jax import base
from bamboo_jax.metrics import table as table_lib

Row = Mapping[str, str | int | float | None]


class Estimate(NamedTuple):
  """Mean of runs, and half its 95 % confidence interval; None for one run."""

  mean: float
  half_width: float | None


def estimate(values: Sequence[float]) -> Estimate:
  """Returns the mean of independent values, and Student's interval."""
  mean = statistics.fmean(values)
  if len(values) == 1:
    return Estimate(mean, None)
  factor = float(special.stdtrit(len(values) - 1, 0.975))
  return Estimate(mean, factor * statistics.stdev(values) / math.sqrt(len(values)))


def estimates(found: Mapping[str, Sequence[float]]) -> Row:
  """Returns the mean of each figure, and as `NAME_ci95` half its interval; None without values."""
  row: dict[str, float | None] = {}
  for name, values in found.items():
    row[name], row[f"{name}_ci95"] = estimate(values) if values else (None, None)
  return row


def point(x: float, row: Row, name: str) -> list[Any]:
  """Returns an estimate of a row as a point of a series: x, y, low, high."""
  mean: Any = row[name]
  half: Any = row[f"{name}_ci95"]
  return [x, mean, *((None, None) if half is None else (mean - half, mean + half))]


def write_summary(workdir: pathlib.Path, table: table_lib.Table) -> None:
  """Writes `summary.csv`, and makes its folder."""
  workdir.mkdir(parents=True, exist_ok=True)
  base.write_atomically(workdir / "summary.csv", table_lib.to_csv(table, digits=6))


def explain_bars(counts: Iterable[int], bars: str = "95 % confidence intervals") -> str:
  """Returns the note of a series whose points are means of that many runs."""
  least, most = min(numbers := list(counts)), max(numbers)
  if most == 1:
    return "single runs, which have no intervals"
  several = f"{least}" if least == most else f"{least} to {most}"
  return f"means of {several} runs; bars: {bars}"
