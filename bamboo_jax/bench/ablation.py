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

import tqdm

from bamboo_jax import base
from bamboo_jax.accounting import runs
from bamboo_jax.bench import turns
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import plots
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.metrics import table as table_lib

Row = Mapping[str, str | int | float | None]
Sweeps = Mapping[str, Sequence[str]]  # Values of each field, as they are given.

_NUM_COLUMNS = 3  # Of panels.
_COLOUR = "#0072B2"

METRICS = (
    "step_ms",
    "tokens_per_sec",
    "bubble_pct",
    "final_loss",
    "num_recoveries",
    "pause_ms",
    "samples",
    "samples_dropped",
    "samples_per_sec",
    "usd",
)


@dataclasses.dataclass(frozen=True)
class Trial:
  """One run of a setting, fields and values as the user wrote them."""

  setting: tuple[tuple[str, str], ...]
  repeat: int

  def __str__(self) -> str:
    return ",".join(f"{field}={value}" for field, value in self.setting)

  @property
  def folder(self) -> str:
    """Where the run goes, below the folder of the ablation."""
    return re.sub(r"[^\w.,=+-]", "_", str(self)) + f"/{self.repeat}"


def parse_sweeps(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
  """Returns fields and values of sweeps such as `redundancy.mode=none,lazy`.

  Commas inside brackets do not separate values. Raises `ValueError` if there is
  no field, no value, or something twice.
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

  Each repeat has another order, so that a machine that slows down in the course
  of time hits all settings alike.
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
  """Returns the row of a finished run; medians leave out the first step.

  So do samples per second, pauses and lost work included.
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
      "samples_per_sec": (
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
    folder: str | os.PathLike[str], rows: Sequence[Row], sweeps: Sweeps
) -> list[Row]:
  """Writes `runs.csv`, `means.csv` and `ablation.png`; returns the means."""
  folder, fields = pathlib.Path(folder), list(sweeps)
  rows = sorted(rows, key=lambda row: [sweeps[f].index(row[f]) for f in fields])
  means = summarise(rows, fields)
  base.write_atomically(folder / "runs.csv", table_lib.to_csv(rows))
  base.write_atomically(folder / "means.csv", table_lib.to_csv(means))
  groups = [
      [row for row in rows if all(row[f] == mean[f] for f in fields)]
      for mean in means
  ]
  panels = {
      name: [_values(group, name) for group in groups]
      for name in METRICS
      if any(mean[name] is not None for mean in means)
  }
  labels = [", ".join(f"{f}={m[f]}" for f in fields) for m in means]
  _plot_groups(folder / "ablation.png", labels=labels, panels=panels)
  return means


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


def _plot_groups(
    path: pathlib.Path,
    *,
    labels: Sequence[str],
    panels: Mapping[str, Sequence[Sequence[float]]],
) -> None:
  """Draws a panel for each metric: every run a dot, every group its mean."""
  num_rows = -(-len(panels) // _NUM_COLUMNS)
  size = (2 + 3 * _NUM_COLUMNS, num_rows * (1.2 + 0.4 * len(labels)))
  fig, grid = plots.new_figure(size, num_rows, _NUM_COLUMNS, sharey=True)
  for axes in grid.flat[len(panels) :]:
    axes.set_axis_off()
  for axes, (name, groups) in zip(grid.flat, panels.items(), strict=False):
    for y, values in enumerate(groups):
      if values:
        axes.plot(values, [y] * len(values), "o", color=_COLOUR, alpha=0.4)
        axes.plot(statistics.fmean(values), y, "|", color=_COLOUR, ms=18)
    axes.set_xlabel(name)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
  plots.save_figure(fig, path)
