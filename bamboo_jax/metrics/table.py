"""Tables as text: columns for a terminal, CSV, Markdown, LaTeX."""

from collections.abc import Collection, Mapping, Sequence
import csv
import io
from typing import Any

_LATEX = str.maketrans(
    {
        **{char: f"\\{char}" for char in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
    }
)


def align(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> str:
  """Returns a line per row, right-aligned except for the columns in `left`."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return "\n".join(
      "  ".join(
          cell.ljust(width) if i in left else cell.rjust(width)
          for i, (cell, width) in enumerate(zip(row, widths, strict=True))
      ).rstrip()
      for row in rows
  )


def to_csv(rows: Sequence[Mapping[str, Any]], *, digits: int | None = None) -> str:
  """Returns CSV: the keys of the first row as header, and all rows.

  All rows have the same keys; None is an empty cell. `digits` are the
  significant digits of floats, None for all.
  """
  out = io.StringIO()
  writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
  writer.writeheader()
  for row in rows:
    writer.writerow({key: _round(value, digits) for key, value in row.items()})
  return out.getvalue()


def to_markdown(rows: Sequence[Sequence[str]]) -> str:
  """Returns rows as Markdown; the first one is the head."""
  lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def to_latex(rows: Sequence[Sequence[str]]) -> str:
  """Returns rows for LaTeX's package booktabs; the first one is the head."""
  head, *body = (" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in rows)
  lines = [rf"\begin{{tabular}}{{{'l' * len(rows[0])}}}", r"\toprule", head]
  lines += [r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
  return "\n".join(lines) + "\n"


def _round(value: Any, digits: int | None) -> Any:
  if digits is None or not isinstance(value, float):
    return value
  return f"{value:.{digits}g}"
