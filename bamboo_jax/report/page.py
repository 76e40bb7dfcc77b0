"""Writes a report: one self-contained HTML page, and its figures.

Figures go into the page as data and beside it as files. All text from users or
files is escaped.
"""

import base64
from collections.abc import Iterable, Sequence
import functools
import html
import os
import pathlib
import re
from typing import Any

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.metrics import plots
from bamboo_jax.report import charts, content

PAGE_NAME = "report.html"

# A longer list is unreadable; the figures show all of them.
_MAX_EVENTS = 500

_TABLES = ("summary.csv", "provenance.json", "metrics.jsonl", "config.json")

_NUMBER = re.compile(r"–|inf|nan|[-+.,e\d]+( %| ± [-+.e\d]+)?")

_STYLE = """
body { font: 15px/1.5 sans-serif; color: #222; max-width: 70rem;
       margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
img { max-width: 100%; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd;
         text-align: right; }
th:first-child, td:first-child, td.text { text-align: left; }
.wide { overflow-x: auto; }
"""

# Columns of the table of runs: heading, entry of `Account.as_dict`, format.
_COLUMNS = (
    ("samples/s", "throughput_samples_per_sec", ".4g"),
    ("$/hour", "cost_usd_per_hour", ".4g"),
    ("value", "value", ".4g"),
    ("$ per million samples", "usd_per_million_samples", ".4g"),
    ("nodes", "num_nodes", ".4g"),
    ("hours", "hours", ".4g"),
    ("samples", "num_samples", ",.0f"),
    ("$", "cost_usd", ".4g"),
    ("$ if on demand", "on_demand_usd", ".4g"),
)


def write_report(
    workdir: str | os.PathLike[str], report: content.Page, *, formats: Sequence[str] = ("png",)
) -> pathlib.Path:
  """Writes `report.html` and figures to a folder; returns the page's path.

  The folder must exist; files in it are replaced. `formats` are those of the
  figures, see `metrics.plots`. Raises `OSError`.
  """
  workdir = pathlib.Path(workdir)
  show = functools.partial(_show, workdir, formats=formats)
  sections = [_paragraphs(report.remarks), _links(workdir)]
  if report.runs:
    sections += ["<h2>Runs</h2>", _runs_table(report.runs)]
    sections += [
        "<h2>Where the nodes' time went</h2>",
        show("node_time", charts.draw_node_time(report.runs)),
        _shares_table(report.runs),
    ]
  if report.curves:
    figure = charts.draw_value(report)
    title = f"{report.value_name} against {report.rate_name}"
    sections += [
        f"<h2>{html.escape(title[0].upper() + title[1:])}</h2>",
        show("value", figure),
        _curves_table(report.curves, report.rate_name),
    ]
  for comparison in report.comparisons:
    sections += _comparison(comparison)
  courses = [run for run in report.runs if run.course is not None]
  if courses:
    sections.append("<h2>Over time</h2>")
  for name, run in zip(_file_names(courses), courses, strict=True):
    sections += [
        f"<h3>{html.escape(run.name)}</h3>",
        show(name, charts.draw_course(run)),
        _events_table(run.course.events if run.course else ()),
    ]
  path = workdir / PAGE_NAME
  base.write_atomically(path, _page(report.title, sections))
  return path


def _page(title: str, sections: Iterable[str]) -> str:
  title = html.escape(title)
  return "\n".join(
      [
          '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
          f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
          f"<h1>{title}</h1>",
          *filter(None, sections),
          "</body>\n</html>\n",
      ]
  )


def _show(workdir: pathlib.Path, name: str, figure: Any, *, formats: Sequence[str]) -> str:
  """Writes a figure and returns its HTML."""
  paths = plots.save_figure(figure, workdir / name, formats)
  data = base64.b64encode(plots.render_figure(figure)).decode()
  links = " · ".join(f'<a href="{path.name}">{path.name}</a>' for path in paths)
  return (
      f'<p><img alt="{name.replace("_", " ")}" '
      f'src="data:image/png;base64,{data}"></p>\n<p>{links}</p>'
  )


def _file_names(runs: Sequence[content.ReportRun]) -> list[str]:
  """Returns a unique file name for each run, without suffix."""
  names: list[str] = []
  for run in runs:
    stem = "run_" + (re.sub(r"[^a-z0-9]+", "_", run.name.lower()).strip("_"))
    if stem in names:
      stem += f"_{len(names) + 1}"
    names.append(stem)
  return names


def _links(workdir: pathlib.Path) -> str:
  """Returns links to the existing tables and inputs."""
  names = (n for n in _TABLES if (workdir / n).exists())
  links = " · ".join(f'<a href="{name}">{name}</a>' for name in names)
  return links and f"<p>{links}</p>"


def _paragraphs(texts: Iterable[str]) -> str:
  return "\n".join(f"<p>{html.escape(text)}</p>" for text in texts)


def _runs_table(runs: Sequence[content.ReportRun]) -> str:
  """Returns the table of runs by falling value; the first is marked."""
  accounts = [run.account for run in runs]
  prices = dict.fromkeys(a.price.render(a.market) for a in accounts if a.price)
  ranked = sorted(runs, key=lambda run: run.account.value, reverse=True)
  rows = []
  for i, run in enumerate(ranked):
    entries: dict[str, Any] = run.account.as_dict()
    entries["hours"] = run.account.secs / 3600
    cells = [content.number(entries[name], spec) for _, name, spec in _COLUMNS]
    best = " (best)" if i == 0 < len(runs) - 1 else ""
    rows.append([run.name + best, *cells])
  table = _table(["run", *[c[0] for c in _COLUMNS]], rows)
  return f"{_paragraphs([f'Nodes: {price}.' for price in prices])}\n{table}"


def _shares_table(runs: Sequence[content.ReportRun]) -> str:
  shares = {run.name: run.account.node_time.shares().values() for run in runs}
  rows = [[n, *[f"{100 * x:.2f} %" for x in s]] for n, s in shares.items()]
  return _table(["run", *account_lib.KINDS], rows)


def _curves_table(curves: Sequence[content.Curve], rate_name: str) -> str:
  rates = sorted({point.rate for curve in curves for point in curve.points})
  rows = []
  for curve in curves:
    points = {point.rate: point for point in curve.points}
    rows.append([curve.policy, *[_interval(points.get(r)) for r in rates]])
  return _table([rate_name, *[f"{rate:g}" for rate in rates]], rows)


def _interval(point: content.Point | None) -> str:
  if point is None:
    return "–"
  if point.low is None or point.high is None:
    return f"{point.value:.3g}"
  half = max(point.high - point.value, point.value - point.low)
  return f"{point.value:.3g} ± {half:.2g}"


def _comparison(comparison: content.Comparison) -> list[str]:
  header, *rows = comparison.rows(".4g")
  return [
      f"<h2>{html.escape(comparison.title)}</h2>",
      f"<p>{html.escape(comparison.label.capitalize())}: "
      f"{html.escape(comparison.source)}. A ratio is simulated over it.</p>",
      _table(header, rows),
  ]


def _events_table(events: Sequence[content.RunEvent]) -> str:
  if not events:
    return ""
  shown = events[:_MAX_EVENTS]
  title = f"{len(events)} events"
  if len(shown) < len(events):
    title += f", the first {len(shown)} of them"
  rows = [[f"{e.secs:.3f}", e.text, e.rung or "–"] for e in shown]
  table = _table(["second", "event", "rung"], rows)
  return f"<details><summary>{title}</summary>\n{table}\n</details>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  lines = ["".join(f"<th>{html.escape(name)}</th>" for name in header)]
  lines += ["".join(map(_cell, row)) for row in rows]
  body = "\n".join(f"<tr>{line}</tr>" for line in lines)
  return f'<div class="wide"><table>\n{body}\n</table></div>'


def _cell(text: str) -> str:
  kind = "" if _NUMBER.fullmatch(text) else ' class="text"'
  return f"<td{kind}>{html.escape(text)}</td>"
