"""Tables of runs and studies, in one form: a JSON value with a title, a note, columns and rows.

Pages draw it; here it becomes CSV, Markdown for a terminal, and LaTeX. None is an empty cell.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import csv
import io
from typing import Any

Table = dict[str, Any]

_LATEX = str.maketrans(
    {
        **{char: f"\\{char}" for char in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
    }
)


def make(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], note: str = ""
) -> Table:
  return dict(title=title, note=note, columns=list(columns), rows=[list(row) for row in rows])


def of(
    rows: Sequence[Mapping[str, Any]], title: str = "", columns: Sequence[str] | None = None
) -> Table:
  """Returns the table of entries by name; by default all that the first row has."""
  names = list(rows[0]) if columns is None else columns
  return make(title, names, ([row[name] for name in names] for row in rows))


def to_csv(table: Table, digits: int | None = None) -> str:
  """Returns CSV, with that many significant digits of floats; None: all."""
  round_ = lambda x: f"{x:.{digits}g}" if digits is not None and isinstance(x, float) else x
  out = io.StringIO()
  rows = ([round_(cell) for cell in row] for row in table["rows"])
  csv.writer(out, lineterminator="\n").writerows([table["columns"], *rows])
  return out.getvalue()


def to_markdown(table: Table, digits: int | None = None) -> str:
  """Returns Markdown, with that many digits after the point.

  None: five significant digits, and none after the point of a whole number.
  """
  columns = table["columns"]

  def show(cell: Any, column: str) -> str:
    if isinstance(cell, int | float) and digits is None:
      return f"{cell:.5g}" if cell % 1 else f"{cell:.0f}"
    if isinstance(cell, int | float):
      return f"{cell:.{3 if column == 'ratio' else digits}f}"
    return "–" if cell is None else str(cell)

  rows = [[show(*pair) for pair in zip(row, columns, strict=True)] for row in table["rows"]]
  return "\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *rows])


def to_latex(table: Table) -> str:
  """Returns a table of texts for LaTeX's package booktabs."""
  head, *body = (
      " & ".join(cell.translate(_LATEX) for cell in row) + r" \\"
      for row in [table["columns"], *table["rows"]]
  )
  lines = [rf"\begin{{tabular}}{{{'l' * len(table['columns'])}}}", r"\toprule", head]
  lines += [r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
  return "\n".join(lines) + "\n"


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
