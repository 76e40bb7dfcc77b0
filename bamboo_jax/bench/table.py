"""Rows of numbers as text, as CSV, and their medians."""

from collections.abc import Mapping, Sequence
import statistics
from typing import Any

from bamboo_jax.metrics import table as table_lib


def render(rows: Sequence[Mapping[str, Any]], columns: str) -> str:
  """Returns a head and a line per row; `columns` as `step_ms={step_ms:.1f}`."""
  pairs = [column.split("=") for column in columns.split()]
  cells = [[text.format(**row) for _, text in pairs] for row in rows]
  return table_lib.align([[heading for heading, _ in pairs], *cells])


def to_csv(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], *, name: str
) -> str:
  """Returns all rounds of all variants as CSV; `name` heads the variants."""
  return table_lib.to_csv(
      [
          {"round": k, name: variant, **row}
          for variant, own in rows.items()
          for k, row in enumerate(own)
      ]
  )


def medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the median of each column; counts stay whole, words as they are."""
  found = dict(rows[0])
  for name, value in found.items():
    if not isinstance(value, str):
      is_count = isinstance(value, int)
      median = statistics.median_low if is_count else statistics.median
      found[name] = median(row[name] for row in rows)
  return found
