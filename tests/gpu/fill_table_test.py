"""The table of docs/guides/gpu.md and the figures of checks fit together."""

import json
import re

from tests.gpu import fill_table


def line(figure, value, part="kills"):
  return json.dumps({"part": part, "figure": figure, "value": value})


def test_fill():
  page = "text\n| `kills.count` | 50 |  |\n| `step.a b.ms` | - |  |\n| x |\n"
  lines = [line("count", 50), line("a b.ms", 12345.6, part="step")]
  assert fill_table.fill(page, lines) == (
      "text\n| `kills.count` | 50 | 50 |\n| `step.a b.ms` | - | 12,346 |\n" "| x |\n"
  )
  assert fill_table.fill(page, []) == page
  again = fill_table.fill(fill_table.fill(page, lines), [line("count", 49)])
  assert "| 50 | 49 |" in again


def test_show():
  shown = [fill_table.show(v) for v in (True, False, None, 0.25, 12, "a")]
  assert shown == ["yes", "no", "-", "0.25", "12", "a"]


def test_rows_of_the_page():
  page = fill_table._PAGE.read_text()
  figures = re.findall(r"^\| `([a-z]+)\.[^`]+` \|", page, re.MULTILINE)
  assert set(figures) == {*("kills", "layouts", "step", "speed", "determinism", "offload"), "spmd"}
