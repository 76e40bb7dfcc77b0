"""Ablations: their trials, and a summary of the results."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import math
import os
import pathlib
import random
import re
import statistics
import sys
import textwrap
from typing import Any

import tqdm

from bamboo_jax import base
from bamboo_jax.accounting import runs
from bamboo_jax.benchmarks import turns
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import plots
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.metrics import table as table_lib

_DOT = dict(marker="o", color=plots.BLUE, linestyle="", alpha=0.5)
_MEAN = dict(marker="D", color=plots.RED, markersize=5, linewidth=1.5)

Row = Mapping[str, str | int | float | None]
Sweeps = Mapping[str, Sequence[str]]  # Values of each field, as given.

_MOST_COLUMNS = 3  # Of panels.

# Each with its name in the figure.
METRICS = {
    "step_ms": "time of a step (ms)",
    "tokens_per_sec": "tokens/s within steps",
    "bubble_pct": "bubble (%)",
    "final_loss": "final loss (nats per token)",
    "num_recoveries": "recoveries",
    "pause_ms": "from a death to the step's end (ms)",
    "samples": "samples",
    "samples_dropped": "samples dropped",
    "samples_per_wall_sec": "samples/s of wall time",
    "usd": "cost ($)",
}


@dataclasses.dataclass(frozen=True)
class Trial:
  """One run of a setting, with fields and values as the user wrote them."""

  setting: tuple[tuple[str, str], ...]
  repeat: int

  def __str__(self) -> str:
    return ",".join(f"{field}={value}" for field, value in self.setting)

  @property
  def folder(self) -> str:
    """Folder of the run, below the folder of the ablation."""
    return re.sub(r"[^\w.,=+-]", "_", str(self)) + f"/{self.repeat}"


def parse_sweeps(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
  """Returns fields and values of sweeps such as `redundancy.mode=none,lazy`.

  Commas inside brackets do not separate values. Raises `ValueError` if a field
  or value is missing or repeated.
  """
  sweeps = {}
  for text in texts:
    field, equals, rest = text.partition("=")
    values = tuple(_split(rest))
    if not field or not equals or "" in values:
      raise ValueError(
          f"--sweep={text} must be a field of the config and its values, such "
          "as redundancy.mode=none,lazy."
      )
    if len(set(values)) < len(values):
      raise ValueError(f"--sweep={text} names a value twice.")
    if field in sweeps:
      raise ValueError(f"--sweep names {field} twice.")
    sweeps[field] = values
  return sweeps


def plan_trials(sweeps: Sweeps, *, repeats: int) -> list[Trial]:
  """Returns all runs, repeat by repeat: every combination of values.

  Each repeat has another order, so that a machine that slows down over time
  affects all settings alike.
  """
  settings = [
      tuple(zip(sweeps, values, strict=True))
      for values in itertools.product(*sweeps.values())
  ]
  rng = random.Random(0)
  return [
      Trial(setting, repeat)
      for repeat in range(repeats)
      for setting in rng.sample(settings, len(settings))
  ]


def run_trials(
    trials: Sequence[Trial], command: Sequence[str], *, workdir: pathlib.Path
) -> list[Row]:
  """Runs the command for each trial, below `workdir`; returns their rows.

  Raises `ValueError` if one fails.
  """
  rows = []
  bar = tqdm.tqdm(trials, unit="run", disable=not sys.stderr.isatty())
  for count, trial in enumerate(bar, 1):
    name, folder = f"{trial} repeat={trial.repeat}", workdir / trial.folder
    changes = [f"--config.{field}={value}" for field, value in trial.setting]
    turns.run_training([*command, *changes, f"--workdir={folder}"], name=name)
    rows.append(read_row(folder, trial))
    if bar.disable:
      step_ms = rows[-1]["step_ms"] or 0
      print(f"run={count}/{len(trials)} {name} {step_ms=:.1f}", flush=True)
  return rows


def read_row(workdir: str | os.PathLike[str], trial: Trial) -> Row:
  """Returns the row of a finished run; medians exclude the first step.

  Samples per second of wall time exclude it too, and include pauses,
  evaluations, checkpoints and lost work. Tokens per second are those within a
  step.
  """
  workdir = pathlib.Path(workdir)
  summary = summary_lib.read_summary(workdir / "summary.json")
  lines = jsonl.read_lines(workdir / "metrics.jsonl")
  steps = [line for line in lines if "event" not in line][1:]
  recoveries = summary.more.get("recoveries", [])
  median = lambda name: _median(line.get(name) for line in steps)
  first, last = runs.last_totals(lines, up_to_step=1), runs.last_totals(lines)
  secs, cost = last.secs - first.secs, summary.more.get("cost", {})
  pauses = [r["kill_to_step_end_secs"] for r in recoveries]
  return {
      **dict(trial.setting),
      "repeat": trial.repeat,
      "step_ms": median("step_ms"),
      "tokens_per_sec": median("tokens_per_sec"),
      "bubble_pct": median("bubble_pct"),
      "final_loss": summary.final_loss,
      "num_recoveries": len(recoveries),
      "pause_ms": _median(1e3 * secs for secs in pauses if secs is not None),
      "samples": cost.get("num_samples"),
      "samples_dropped": summary.more.get("samples_dropped"),
      "samples_per_wall_sec": (
          (last.num_samples - first.num_samples) / secs if secs else None
      ),
      "usd": cost.get("cost_usd"),
      "state_sha256": summary.state_sha256,
  }


def summarise(rows: Sequence[Row], fields: Sequence[str]) -> list[Row]:
  """Returns mean and 95 % interval (Student's t) of metrics by setting."""
  groups = {}
  for row in rows:
    groups.setdefault(tuple((f, row[f]) for f in fields), []).append(row)
  means = []
  for setting, group in groups.items():
    mean = {**dict(setting), "repeats": len(group)}
    for name in METRICS:
      values = _values(group, name)
      mean[name] = statistics.fmean(values) if values else None
      mean[f"{name}_ci95"] = _half_interval(values)
    hashes = {row["state_sha256"] for row in group}
    mean["same_state"] = "yes" if len(hashes) == 1 else "no"
    means.append(mean)
  return means


def render(mean: Row) -> str:
  """Returns the means of a setting as `name=value` pairs."""
  shown = []
  for name, value in mean.items():
    if value is None or name.endswith("_ci95"):
      continue
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    interval = mean.get(f"{name}_ci95")
    if interval is not None:
      text += f"±{interval:.2g}"
    shown.append(f"{name}={text}")
  return " ".join(shown)


def write(
    folder: str | os.PathLike[str],
    rows: Sequence[Row],
    sweeps: Sweeps,
    *,
    formats: Sequence[str] = ("png",),
) -> list[Row]:
  """Writes `runs.csv`, `means.csv` and the figure; returns the means."""
  folder, fields = pathlib.Path(folder), list(sweeps)
  rows = sorted(rows, key=lambda row: [sweeps[f].index(row[f]) for f in fields])
  means = summarise(rows, fields)
  base.write_atomically(folder / "runs.csv", table_lib.to_csv(rows))
  base.write_atomically(folder / "means.csv", table_lib.to_csv(means))
  plots.save_figure(draw(rows, sweeps), folder / "ablation.png", formats)
  return means


def draw(rows: Sequence[Row], sweeps: Sweeps) -> Any:
  """Returns a figure with a panel for each metric that differs between runs.

  Runs are dots; settings with several runs have their mean and its interval.
  Metrics that are equal in all runs are listed below.
  """
  lines = plots.load("lines")

  groups: dict[str, list[Row]] = {}
  for row in rows:
    groups.setdefault(", ".join(row[f] for f in sweeps), []).append(row)
  found = {name: {*_values(rows, name)} for name in METRICS}
  same = [name for name in METRICS if len(found[name]) == 1]
  panels = [name for name in METRICS if len(found[name]) > 1] or same
  columns = min(_MOST_COLUMNS, len(panels))
  num_rows = -(-len(panels) // columns)
  size = (2 + 3 * columns, 0.9 + num_rows * (0.9 + 0.45 * len(groups)))
  fig, grid = plots.new_figure(size, num_rows, columns, sharey=True)
  for axes in grid.flat[len(panels) :]:
    axes.set_axis_off()
  for axes, name in zip(grid.flat, panels, strict=False):
    _draw_panel(axes, [_values(group, name) for group in groups.values()])
    axes.set_xlabel(plots.plain(METRICS[name]))
    axes.set_yticks(range(len(groups)), map(plots.plain, groups))
    axes.set_ylim(len(groups) - 0.5, -0.5)
  fields = textwrap.fill(", ".join(sweeps), int(10 * size[0]))
  grid[0, 0].set_title(plots.plain(fields), loc="left", fontsize=10)
  if panels != same and same:
    facts = (f"{METRICS[n]}: {[*found[n]][0]:g}" for n in same)
    text = f"The same in all runs: {'; '.join(facts)}."
    fig.supxlabel(
        plots.plain(textwrap.fill(text, int(13 * size[0]))), fontsize=8
    )
  if any(len(group) > 1 for group in groups.values()):
    dot = lines.Line2D([], [], label="a run", **_DOT)
    mean = lines.Line2D([], [], label="mean and 95 % interval", **_MEAN)
    plots.add_legend(fig, [dot, mean], side="upper")
  return fig


def _draw_panel(axes: Any, groups: Sequence[Sequence[float]]) -> None:
  """Draws the runs of each group, and below them their means."""
  ticker = plots.load("ticker")

  for y, values in enumerate(groups):
    half = _half_interval(values)
    shift = 0.0 if half is None else 0.15
    axes.plot(values, [y - shift] * len(values), **_DOT)
    if half is not None:
      mean = statistics.fmean(values)
      axes.errorbar(mean, y + shift, xerr=half, capsize=3, **_MEAN)
  axes.margins(x=0.08)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(4))


def _values(rows: Sequence[Row], name: str) -> list[float]:
  return [row[name] for row in rows if row[name] is not None]


def _split(text: str) -> list[str]:
  parts, depth = [""], 0
  for char in text:
    depth += (char in "([{") - (char in ")]}")
    if char == "," and depth == 0:
      parts.append("")
    else:
      parts[-1] += char
  return parts


def _median(values: Iterable[float | None]) -> float | None:
  found = [value for value in values if value is not None]
  return statistics.median(found) if found else None


def _half_interval(values: Sequence[float]) -> float | None:
  from scipy import stats

  if len(values) < 2:
    return None
  quantile = stats.t.ppf(0.975, len(values) - 1)
  return float(quantile * statistics.stdev(values) / math.sqrt(len(values)))
