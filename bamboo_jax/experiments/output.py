"""Tables of published against simulated figures, and the files they go into."""

from collections.abc import Mapping, Sequence
import pathlib

from bamboo_jax import base
from bamboo_jax.metrics import table
from bamboo_jax.report import content

# Figures of others, with their sources.
PUBLISHED = (
    pathlib.Path(__file__)
    .resolve()
    .parents[2]
    .joinpath("third_party", "published")
)

Row = Mapping[str, str | int | float | None]


def write_summary(workdir: pathlib.Path, rows: Sequence[Row]) -> None:
  """Writes `summary.csv`; its columns are the keys of the first row."""
  text = table.to_csv(rows, digits=6)
  base.write_atomically(workdir / "summary.csv", text)


def render(comparison: content.Comparison, *, digits: int) -> str:
  """Returns a comparison as Markdown, its figures with so many decimals."""
  head = ["", "published"]
  for column in comparison.columns:
    head += [column, "ratio"]
  has_notes = any(line.note for line in comparison.lines)
  rows = [head + ["note"] * has_notes]
  for line in comparison.lines:
    row = [line.what, _number(line.published, digits)]
    for figure, ratio in zip(line.simulated, line.ratios, strict=True):
      row += [_number(figure, digits), _number(ratio, 3)]
    rows.append(row + [line.note] * has_notes)
  return table.to_markdown(rows)


def render_rows(rows: Sequence[Row]) -> str:
  """Returns rows as Markdown; their columns are the keys of the first."""
  lines = [list(rows[0])]
  lines += [
      [f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()]
      for row in rows
  ]
  return table.to_markdown(lines)


def _number(value: float | None, digits: int) -> str:
  return "–" if value is None else f"{value:.{digits}f}"
