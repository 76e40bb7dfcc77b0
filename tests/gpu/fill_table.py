"""Fills the last column of the table of docs/guides/gpu.md from results.

python -m tests.gpu.fill_table gpu.jsonl

A row's first cell names its figure as `part.figure`, in backticks. Figures that
the file does not have stay as they are.
"""

import json
import pathlib
import re
import sys

from tests import folders

PAGE = folders.ROOT / "docs" / "guides" / "gpu.md"
_ROW = re.compile(r"\| `(?P<figure>[^`]+)` \|.*\|")


def fill(page: str, lines: list[str]) -> str:
  """Returns the page with the figures of JSON lines in its table."""
  figures = {}
  for line in lines:
    entry = json.loads(line)
    figures[f"{entry['part']}.{entry['figure']}"] = entry["value"]

  def fill_row(row: str) -> str:
    match = _ROW.fullmatch(row)
    if not match or match["figure"] not in figures:
      return row
    cells = row.split("|")
    cells[-2] = f" {show(figures[match['figure']])} "
    return "|".join(cells)

  return "\n".join(map(fill_row, page.split("\n")))


def show(value: object) -> str:
  """Returns a figure as text, floats with four digits."""
  if isinstance(value, bool):
    return "yes" if value else "no"
  if isinstance(value, float):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
  return "-" if value is None else str(value)


if __name__ == "__main__":
  results = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
  text = fill(PAGE.read_text(encoding="utf-8"), results.splitlines())
  PAGE.write_text(text, encoding="utf-8")
