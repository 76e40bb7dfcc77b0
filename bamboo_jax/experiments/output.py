"""Tables of published against simulated figures, and the files they go into."""

from collections.abc import Mapping, Sequence
import pathlib

from bamboo_jax import base
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.report import content

# Figures of others, with their sources.
PUBLISHED = (
    pathlib.Path(__file__).resolve().parents[2] / "third_party/published"
)

Row = Mapping[str, str | int | float | None]


def write_summary(workdir: pathlib.Path, rows: Sequence[Row]) -> None:
  """Writes `summary.csv`; its columns are the keys of the first row.

  Raises:
    ValueError: There is nothing to write.
  """
  if not rows:
    raise ValueError("The config leaves no line for summary.csv.")
  text = table_lib.to_csv(rows, digits=6)
  base.write_atomically(workdir / "summary.csv", text)


def render(comparison: content.Comparison, *, digits: int) -> str:
  """Returns a comparison as Markdown, figures with `digits` decimals."""
  return table_lib.to_markdown(comparison.rows(f".{digits}f"))


def render_rows(rows: Sequence[Row]) -> str:
  """Returns rows as Markdown; their columns are the keys of the first."""
  lines = [list(rows[0])]
  lines += [[_show(value) for value in row.values()] for row in rows]
  return table_lib.to_markdown(lines)


def _show(value: str | int | float | None) -> str:
  if isinstance(value, float):
    return f"{value:.4g}"
  return "–" if value is None else str(value)
