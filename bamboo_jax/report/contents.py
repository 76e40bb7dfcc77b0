"""A report on one run or several, trained or simulated, as one JSON value.

  title, remarks   text
  runs             a value of `live.facts.find` for each, with its `figures`
  tables           by name: title, note, columns, rows; the first, "runs", has a
                   column for each run
  series           by name: title, note, x, y, and lines of [x, y, low, high]

`page.html` draws it, `figures` draws it for papers, `bamboo report` prints it.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import contextlib
import itertools
import json
import pathlib
import sys
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.metrics import jsonl, plots, summary as summary_lib, table as table_lib
from bamboo_jax.recovery import durations
from bamboo_jax.report import figures as figures_lib
from bamboo_jax.report.live import facts, feed as feed_lib, words
from bamboo_jax.sim import loop

Value = dict[str, Any]

PAGE, DATA = "report.html", "report.json"
_MOST = 1000  # Points of a simulated run.
# Rows of the table of runs: names of `figures`, and what the page calls them.
_ROWS = {
    **{"state": "state", "model": "model", "steps": "steps", "loss": "loss", "hours": "hours"},
    **{"num_nodes": "nodes", "layout": "layout", "num_samples": "samples"},
    "throughput_samples_per_sec": "samples per second",
    "tokens_per_sec": "tokens per second",
    "instance": "instance",
    "price": "price",
    "cost_usd": "$",
    "cost_usd_per_hour": "$ per hour",
    "on_demand_usd": "$ if on demand",
    "value": "value (samples/s per $/h)",
    "usd_per_million_samples": "$ per million samples",
    **{f"{kind}_pct": f"{kind} (% of node time)" for kind in account_lib.KINDS},
    "recoveries": "recoveries",
    "state_sha256": "state_sha256",
}
_CURVE = ("step", "secs", "loss", "per_sec", "nodes", "usd", "samples")


def make(
    title: str,
    runs: Sequence[Value] = (),
    *,
    remarks: Iterable[str] = (),
    tables: Mapping[str, Value] | None = None,
    series: Mapping[str, Value] | None = None,
) -> Value:
  """Returns a report; the names of runs must differ."""
  names = [run["head"]["run"] for run in runs]
  assert len({*names}) == len(names), names
  rows = [[label, *(run["figures"].get(key) for run in runs)] for key, label in _ROWS.items()]
  rows = [row for row in rows if any(cell is not None for cell in row[1:])]
  prices = {run["figures"].get("price"): None for run in runs}
  told = [*remarks, *(f"Nodes: {price}." for price in prices if price)]
  return {
      "title": title,
      "remarks": list(dict.fromkeys(told)),
      "runs": list(runs),
      "tables": ({"runs": table_lib.make("Runs", ["", *names], rows)} if rows else {})
      | dict(tables or {}),
      "series": dict(series or {}),
  }


def series(
    x: str,
    lines: Mapping[str, Sequence[Sequence[float | None]]],
    *,
    y: str = "value (samples/s per $/h)",
    note: str = "",
) -> Value:
  """Returns lines of points [x, y, low, high]; `note` explains the bars."""
  return dict(title=f"{y[0].upper()}{y[1:]} against {x}", note=note, x=x, y=y, lines=dict(lines))


def compare(
    title: str,
    lines: Iterable[tuple[str, float | None, Sequence[float | None], str]],
    *,
    columns: Sequence[str],
    source: str,
    label: str = "published",
) -> Value:
  """Returns a table of figures from `source` beside simulated ones.

  A line has a name, the figure from the source, one for each of `columns`, and
  a note. Each column is followed by its ratio to the source.
  """
  head, rows = ["", label, *(name for c in columns for name in (c, "ratio")), "note"], []
  for what, published, simulated, note in lines:
    row: list[Any] = [what, published]
    for figure in simulated:
      row += [figure, figure / published if published and figure is not None else None]
    rows.append([*row, note])
  if not any(row[-1] for row in rows):
    head, rows = head[:-1], [row[:-1] for row in rows]
  note = f"{label.capitalize()}: {source}. A ratio is simulated over it."
  return table_lib.make(title, head, rows, note)


def simulated(name: str, outcome: loop.Outcome, model: str | None = None) -> Value:
  """Returns a simulated run with its moments, see `loop.simulate`; `model` has the costs."""
  account, moments = outcome.account, outcome.moments
  usd_per_sec = account.price.usd_per_hour(account.market) / 3600 if account.price else 0.0
  secs = np.array([0.0, *(m.secs for m in moments), account.secs])
  rates = ([m.samples_per_sec for m in moments], [m.num_nodes for m in moments])
  totals = [np.cumsum([0.0, 0.0, *np.diff(secs)[1:] * each]) for each in rates]
  if len(secs) > _MOST:  # Means over equal pieces: without, short pauses hide the rest.
    edges = np.linspace(0.0, account.secs, _MOST)
    totals, secs = [np.interp(edges, secs, total) for total in totals], edges
  secs, places = np.unique(secs, return_index=True)
  samples, node_secs = (total[places] for total in totals)
  means = [np.diff(total[places]) / np.diff(secs) for total in totals]
  columns = (secs[1:], *means, usd_per_sec * node_secs[1:], samples[1:])
  curve: list[list[Any]] = []
  for point in zip(*columns, strict=True):
    at, rate, nodes, usd, sum_samples = (float(f"{x:.7g}") for x in point)
    curve.append([None, at, None, rate, nodes, usd, sum_samples])
  curve[:0] = [[None, 0.0, None, *point[3:5], 0.0, 0.0] for point in curve[:1]]
  recoveries: list[Value] = [
      {"step": None, "train_secs": m.secs, "rung": m.rung, "text": m.text}
      for m in moments
      if m.rung != "none"
  ]
  figures = facts.figures_of(account) | {
      "state": "simulated",
      "model": model,
      "steps": outcome.num_steps,
      "layout": words.describe_owners(moments[-1].owners if moments else ()),
      "recoveries": words.count(r["rung"] for r in recoveries),
  }
  return facts.empty(name, "simulated") | {
      "figures": figures,
      "curve": curve,
      "recoveries": recoveries,
      "time": facts.find_time(account),
      "metrics": {"usd": account.usd} if account.price else {},
  }


def read(folders: Sequence[pathlib.Path], charges: Mapping[str, Any]) -> Value:
  """Returns a report on the runs in folders: of a training, or of a simulation.

  `charges` replace entries of `config.cost`. Raises `OSError`, or `ValueError` if
  a folder has no run.
  """
  reports = [_read(folder, charges) for folder in folders]
  if len(reports) == 1:
    return reports[0]
  if len({folder.resolve() for folder in folders}) < len(folders):
    raise ValueError(f"A folder is given twice: {', '.join(map(str, folders))}.")
  names = collections.Counter(run["head"]["run"] for found in reports for run in found["runs"])
  titles, models = collections.Counter(f.name for f in folders), collections.defaultdict(list)
  more: dict[str, dict[str, Value]] = {"tables": {}, "series": {}}
  for folder, found in zip(folders, reports, strict=True):
    for run in found["runs"]:
      head = run["head"]
      if names[head["run"]] > 1:
        head["run"] = f"{folder}" if len(found["runs"]) == 1 else f"{folder}: {head['run']}"
      if model := run["figures"].get("model"):
        models[model].append(head["run"])
    name = folder.name if titles[folder.name] == 1 else f"{folder}".strip("/").replace("/", "_")
    for kind, parts in more.items():
      parts |= {f"{name}_{k}": part for k, part in found[kind].items() if k != "runs"}
  remarks = [remark for found in reports for remark in found["remarks"]]
  if len(models) > 1:
    trained = "; ".join(f"{model}: {', '.join(of)}" for model, of in models.items())
    remarks.append(f"Losses and rates of different models do not compare. {trained}.")
  title = " and ".join(found["title"] for found in reports)
  runs = [run for found in reports for run in found["runs"]]
  return make(title, runs, remarks=remarks, **more)


def _read(folder: pathlib.Path, charges: Mapping[str, Any]) -> Value:
  if (folder / "metrics.jsonl").exists():
    run = read_run(folder, charges)
    return make(run["head"]["run"], [run])
  if not (folder / DATA).exists():
    raise ValueError(
        f"There is no run in {folder}: it has neither metrics.jsonl nor the {DATA} of a "
        "simulation. Earlier versions wrote none: simulate again."
    )
  if charges:
    raise ValueError(f"--{next(iter(charges))} has no effect on simulations, as in {folder}.")
  return _parse(folder)


def _parse(folder: pathlib.Path) -> Value:
  """Returns the report of a simulation; `ValueError` if it is not of this version."""
  with contextlib.suppress(AttributeError, TypeError, ValueError):  # It may be damaged.
    report: Value = json.loads((folder / DATA).read_text(encoding="utf-8"))
    of_run = facts.empty("", "").keys()
    if report.keys() == make("").keys() and all(of_run <= run.keys() for run in report["runs"]):
      return report
  raise ValueError(f"{folder / DATA} is not of this version: simulate again.")


def read_run(folder: pathlib.Path, charges: Mapping[str, Any]) -> Value:
  """Returns a run that trained, over or not, from the files in its folder; see `read`."""
  kills: Mapping[base.NodeId, float] = {}  # Times of death that the launcher of a cluster knew.
  if (folder / "summary.json").exists():
    lines = jsonl.read_lines(folder / "metrics.jsonl")
    recoveries = [line for line in lines if line.get("event") == "recovery"]
    summary = summary_lib.read_summary(folder / "summary.json")
    kills = durations.find_kills(recoveries, summary.more.get("recoveries", ()))
  name = folder.resolve().name
  return feed_lib.Feed(folder, name=name, kills=kills, charges=charges).read()


def write(folder: pathlib.Path, report: Value, formats: Sequence[str]) -> None:
  """Writes page, JSON and figures of a simulation; raises `OSError`.

  The figures of an earlier simulation in the folder are removed.
  """
  if (folder / DATA).exists():
    with contextlib.suppress(ValueError, LookupError, TypeError):  # It is of another version.
      for name, suffix in itertools.product(figures_lib.plan(_parse(folder)), plots.FORMATS):
        (folder / f"{name}.{suffix}").unlink(missing_ok=True)
  base.write_atomically(folder / PAGE, words.render_page(report))
  base.write_atomically(folder / DATA, json.dumps(report))
  figures_lib.save_all(report, folder, formats)


def to_csv(report: Value, name: str) -> str:
  """Returns a table of the report, a series, or a part of its runs, as CSV.

  Raises `ValueError` if there is none of that name.
  """
  tables, series = report["tables"], report["series"]
  parts = ("curve", "recoveries", "events")
  if name in tables:
    found = tables[name]
  elif name in series:
    lines = series[name]["lines"].items()
    points = ([line, *point] for line, points in lines for point in points)
    found = table_lib.make("", ["line", series[name]["x"], "value", "low", "high"], points)
  elif name in parts:
    entries = [
        (run["head"]["run"], dict(zip(_CURVE, e, strict=True)) if name == "curve" else e)
        for run in report["runs"]
        for e in run[name]
    ]
    head = ["run", *dict.fromkeys(key for _, entry in entries for key in entry)]
    rows = ([run, *(entry.get(key) for key in head[1:])] for run, entry in entries)
    found = table_lib.make("", head, rows)
  else:
    raise ValueError(base.suggest(name, [*tables, *series, *parts], what="table"))
  return table_lib.to_csv(found)


_COMPARED = ("steps", "samples_seen", "state_sha256", "final_loss")


def find_differences(*summaries: summary_lib.Summary) -> list[str]:
  """Returns the fields in which summaries of runs differ at the end."""
  return [n for n in _COMPARED if len({getattr(summary, n) for summary in summaries}) > 1]


def check_ended(folders: Sequence[pathlib.Path]) -> None:
  """Raises `ValueError` for a run without a last state."""
  for folder in folders:
    if not (folder / "summary.json").exists():
      raise ValueError(f"The run in {folder} has no last state: it has not ended, or is simulated.")


def show_ends(folders: Sequence[pathlib.Path]) -> bool:
  """Prints how runs have ended; returns whether their ends are the same.

  Raises `OSError` or `ValueError` for a summary that cannot be read.
  """
  ends = [summary_lib.read_summary(f / "summary.json") for f in folders]
  for folder, end in zip(folders, ends, strict=True):
    print(f"{folder.name}: {end}")
  if differing := find_differences(*ends):
    print(f"different: {', '.join(differing)}", file=sys.stderr)
  return not differing
