"""Rows of numbers: medians, ratios of pairs, and rows as text and files."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
import statistics
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.metrics import table as table_lib

_NUM_DRAWS = 2000

Rows = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Ratio:
  """Median of some ratios; 95 % interval by bootstrap over the pairs.

  A single pair has no interval: `low` and `high` are None.
  """

  median: float
  low: float | None
  high: float | None
  num_pairs: int

  def __str__(self) -> str:
    if self.low is None:
      return f"{self.median:.3f}"
    return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(values: Sequence[float], to: Sequence[float]) -> Ratio:
  """Returns the ratio of `values`, one or more, to their pairs in `to`."""
  ratios = np.array([v / t for v, t in zip(values, to, strict=True)])
  if len(ratios) == 1:
    return Ratio(float(ratios[0]), None, None, 1)
  rng = np.random.default_rng(0)
  draws = rng.choice(ratios, size=(_NUM_DRAWS, len(ratios)))
  low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
  return Ratio(float(np.median(ratios)), float(low), float(high), len(ratios))


def step_ratio(steps: Rows, to: Rows) -> Ratio:
  """Returns the ratio of the times of steps of the same rounds."""
  return paired_ratio(*([row["step_ms"] for row in rows] for rows in (steps, to)))


def medians(rows: Rows) -> dict[str, Any]:
  """Returns the median of each column; counts stay integers, text unchanged."""
  found = dict(rows[0])
  for name, value in found.items():
    if not isinstance(value, str):
      is_count = isinstance(value, int)
      median = statistics.median_low if is_count else statistics.median
      found[name] = median(row[name] for row in rows)
  return found


def render(rows: Rows, columns: str) -> str:
  """Returns a head and a line per row; `columns` as `step_ms={step_ms:.1f}`."""
  pairs = [column.split("=") for column in columns.split()]
  cells = [[text.format(**row) for _, text in pairs] for row in rows]
  return table_lib.align([[heading for heading, _ in pairs], *cells])


def write(
    out: pathlib.Path, report: Mapping[str, Any], *, name: str, steps: Mapping[str, Rows]
) -> None:
  """Writes `report.json`, and all rounds of all variants to `steps.csv`.

  `name` heads the column of the variants.
  """
  text = json.dumps(report, indent=2, default=vars) + "\n"
  base.write_atomically(out / "report.json", text)
  rows = [
      {"round": k, name: variant, **row}
      for variant, own in steps.items()
      for k, row in enumerate(own)
  ]
  base.write_atomically(out / "steps.csv", table_lib.to_csv(rows))
