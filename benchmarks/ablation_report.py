"""Ablations: tables, paired differences and the figure of their rows."""

from collections.abc import Iterator, Sequence
import os
import pathlib
import textwrap
from typing import Any

from bamboo_jax import base
from bamboo_jax.benchmarks import ablation
from bamboo_jax.experiments import output
from bamboo_jax.metrics import palette, plots, table as table_lib

# Runs that differ in a setting are compared where these are the same.
_BLOCKS = ("seed", *ablation.FILES)

_DOT = dict(marker="o", color=palette.BLUE, linestyle="", alpha=0.5)
_MEAN = dict(marker="D", color=palette.RED, markersize=5, linewidth=1.5)
_MOST_COLUMNS = 3  # Of panels.


def summarise(rows: Sequence[ablation.Row], fields: Sequence[str]) -> list[ablation.Row]:
  """Returns mean and 95 % interval (Student's t) of metrics by setting."""
  groups: dict[tuple[Any, ...], list[ablation.Row]] = {}
  for row in rows:
    groups.setdefault(tuple(row[f] for f in fields), []).append(row)
  return [
      {
          **dict(zip(fields, setting, strict=True)),
          "repeats": len(group),
          **output.estimates({n: _values(group, n) for n in ablation.METRICS}),
          "same_state": ("yes" if len({r["state_sha256"] for r in group}) == 1 else "no"),
      }
      for setting, group in groups.items()
  ]


def subtract(rows: Sequence[ablation.Row], sweeps: ablation.Sweeps) -> list[ablation.Row]:
  """Returns differences of settings to the first: mean and 95 % interval.

     seed=1   seed=2          Fields of `_BLOCKS` and the repeat make pairs;
  a  310  <-  290  <-         a setting is all other fields. What varies
  b  330  --  312  --   +21   between pairs is not in the interval.
  """
  fields = [field for field in sweeps if field not in _BLOCKS]
  if not fields:
    return []
  first = tuple(sweeps[field][0] for field in fields)
  groups: dict[tuple[Any, ...], dict[tuple[Any, ...], ablation.Row]] = {}
  for row in rows:
    pair = tuple(row[name] for name in (*_BLOCKS, "repeat") if name in row)
    groups.setdefault(tuple(row[f] for f in fields), {})[pair] = row
  before = groups.pop(first, {})
  found = []
  for setting, group in groups.items():
    pairs = [(row, before[pair]) for pair, row in group.items() if pair in before]
    found.append(
        {
            **dict(zip(fields, setting, strict=True)),
            "minus": ", ".join(first),
            "pairs": len(pairs),
            **output.estimates({n: [*_differences(pairs, n)] for n in ablation.METRICS}),
        }
    )
  return found


def _differences(pairs: Sequence[tuple[ablation.Row, ablation.Row]], name: str) -> Iterator[float]:
  for row, before in pairs:
    if row[name] is not None and before[name] is not None:
      yield row[name] - before[name]


def _show(row: ablation.Row) -> dict[str, str]:
  """Returns the cells of a table for readers; no number is an empty one."""
  shown = {}
  for name, value in row.items():
    if name.endswith("_ci95"):
      continue
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if (interval := row.get(f"{name}_ci95")) is not None:
      text += f" ± {interval:.2g}"
    shown[name] = "" if value is None else text
  return shown


def write_tables(
    folder: str | os.PathLike[str], rows: Sequence[ablation.Row], sweeps: ablation.Sweeps
) -> list[table_lib.Table]:
  """Writes the runs so far, means and differences; returns those two, for readers.

  `runs.csv` has all runs; `means` and `differences`, if there are two settings,
  are written as CSV, Markdown and LaTeX.
  """
  folder, fields = pathlib.Path(folder), list(sweeps)
  rows = sorted(rows, key=lambda row: [sweeps[f].index(row[f]) for f in fields])
  base.write_atomically(folder / "runs.csv", table_lib.to_csv(table_lib.of(rows)))
  found, shown = {"means": summarise(rows, fields), "differences": subtract(rows, sweeps)}, []
  for name, rows in found.items():
    if rows:
      cells = [_show(row) for row in rows]
      columns = [c for c in cells[0] if any(row[c] for row in cells)]
      shown.append(table_lib.of(cells, name, columns))
      base.write_atomically(folder / f"{name}.csv", table_lib.to_csv(table_lib.of(rows)))
      text = table_lib.to_markdown(shown[-1]) + "\n"
      base.write_atomically(folder / f"{name}.md", text)
      base.write_atomically(folder / f"{name}.tex", table_lib.to_latex(shown[-1]))
  return shown


def draw(rows: Sequence[ablation.Row], sweeps: ablation.Sweeps) -> Any:
  """Returns a figure with a panel for each metric that differs between runs.

  Runs are dots; settings with several runs have their mean and its interval.
  Metrics that are equal in all runs are listed below; fields with one value
  are left out. Panels show the range of the runs, of wide intervals a part.
  """
  lines = plots.load("lines")

  swept = [field for field, values in sweeps.items() if len(values) > 1] or [*sweeps]
  groups: dict[str, list[ablation.Row]] = {}
  for row in rows:
    groups.setdefault(", ".join(row[f] for f in swept), []).append(row)
  found = {name: {*_values(rows, name)} for name in ablation.METRICS}
  same = [name for name in ablation.METRICS if len(found[name]) == 1]
  panels = [name for name in ablation.METRICS if len(found[name]) > 1] or same
  columns = min(_MOST_COLUMNS, len(panels))
  num_rows = -(-len(panels) // columns)
  size = (2 + 3 * columns, 0.9 + num_rows * (0.9 + 0.45 * len(groups)))
  fig, grid = plots.new_figure(size, num_rows, columns, sharey=True)
  for axes in grid.flat[len(panels) :]:
    axes.set_axis_off()
  for axes, name in zip(grid.flat, panels, strict=False):
    _draw_panel(axes, [_values(group, name) for group in groups.values()])
    axes.set_xlabel(plots.plain(ablation.METRICS[name]))
    axes.set_yticks(range(len(groups)), map(plots.plain, groups))
    axes.set_ylim(len(groups) - 0.5, -0.5)
  fields = textwrap.fill(", ".join(swept), int(10 * size[0]))
  grid[0, 0].set_title(plots.plain(fields), loc="left", fontsize=10)
  if panels != same and same:
    facts = (f"{ablation.METRICS[n]}: {[*found[n]][0]:g}" for n in same)
    text = f"The same in all runs: {'; '.join(facts)}."
    fig.supxlabel(plots.plain(textwrap.fill(text, int(13 * size[0]))), fontsize=8)
  if any(len(group) > 1 for group in groups.values()):
    dot = lines.Line2D([], [], label="a run", **_DOT)
    mean = lines.Line2D([], [], label="mean and 95 % interval", **_MEAN)
    plots.add_legend(fig, [dot, mean], side="upper")
  return fig


def _draw_panel(axes: Any, groups: Sequence[Sequence[float]]) -> None:
  """Draws the runs of each group, and below them their means."""
  ticker = plots.load("ticker")

  for y, values in enumerate(groups):
    estimate = output.estimate(values) if len(values) > 1 else None
    shift = 0.15 if estimate else 0.0
    axes.plot(values, [y - shift] * len(values), **_DOT)
    if estimate:
      mean, half = estimate.mean, estimate.half_width
      axes.errorbar(mean, y + shift, xerr=half, capsize=3, **_MEAN)
  every = [value for values in groups for value in values]
  margin = 0.5 * (max(every) - min(every)) or 0.08 * abs(every[0]) or 1.0
  axes.set_xlim(min(every) - margin, max(every) + margin)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(4))


def _values(rows: Sequence[ablation.Row], name: str) -> list[float]:
  return [row[name] for row in rows if row[name] is not None]
