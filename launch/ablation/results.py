"""What the runs of an ablation came to: rows, means, a figure."""

from collections.abc import Iterable, Mapping, Sequence
import math
import os
import pathlib
import statistics

from bamboo_jax import base
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.metrics import table
from launch.ablation import plot
from launch.ablation import sweep

Row = Mapping[str, str | int | float | None]

METRICS = (
    "step_ms",
    "tokens_per_sec",
    "bubble_pct",
    "final_loss",
    "num_recoveries",
    "pause_ms",
)


def read_row(workdir: str | os.PathLike[str], trial: sweep.Trial) -> Row:
  """Returns the row of a run that has ended.

  Medians leave out the first step, which warms up.

  Args:
    workdir: Where the run is.
    trial: What it was.
  """
  workdir = pathlib.Path(workdir)
  summary = summary_lib.read_summary(workdir / "summary.json")
  lines = jsonl.read_lines(workdir / "metrics.jsonl")
  steps = [line for line in lines if "event" not in line][1:]
  recoveries = summary.more.get("recoveries", [])
  median = lambda name: _median(line[name] for line in steps if name in line)
  return {
      **dict(trial.setting),
      "repeat": trial.repeat,
      "step_ms": median("step_ms"),
      "tokens_per_sec": median("tokens_per_sec"),
      "bubble_pct": median("bubble_pct"),
      "final_loss": summary.final_loss,
      "num_recoveries": len(recoveries),
      "pause_ms": _median(
          1e3 * r["kill_to_step_end_secs"]
          for r in recoveries
          if r["kill_to_step_end_secs"] is not None
      ),
      "state_sha256": summary.state_sha256,
  }


def summarise(rows: Sequence[Row], fields: Sequence[str]) -> list[Row]:
  """Returns mean and 95 % confidence interval of each metric by setting.

  The interval is that of Student's t over repeats, so it needs two of them.
  """
  groups = {}
  for row in rows:
    groups.setdefault(tuple((f, row[f]) for f in fields), []).append(row)
  means = []
  for setting, group in groups.items():
    mean = {**dict(setting), "repeats": len(group)}
    for name in METRICS:
      values = [row[name] for row in group if row[name] is not None]
      mean[name] = statistics.fmean(values) if values else None
      mean[f"{name}_ci95"] = _half_interval(values)
    hashes = {row["state_sha256"] for row in group}
    mean["same_state"] = "yes" if len(hashes) == 1 else "no"
    means.append(mean)
  return means


def write(
    folder: str | os.PathLike[str], rows: Sequence[Row], fields: Sequence[str]
) -> list[Row]:
  """Writes `runs.csv`, `means.csv` and `ablation.png`; returns the means."""
  folder = pathlib.Path(folder)
  means = summarise(rows, fields)
  base.write_atomically(folder / "runs.csv", table.to_csv(rows))
  base.write_atomically(folder / "means.csv", table.to_csv(means))
  labels = [", ".join(f"{f}={m[f]}" for f in fields) for m in means]
  panels = {
      name: [
          _values(rows, name, {f: mean[f] for f in fields}) for mean in means
      ]
      for name in METRICS
      if any(mean[name] is not None for mean in means)
  }
  plot.plot_groups(folder / "ablation.png", labels=labels, panels=panels)
  return means


def _values(
    rows: Sequence[Row], name: str, setting: Mapping[str, str]
) -> list[float]:
  """Returns a metric of the runs of a setting, where it is known."""
  return [
      row[name]
      for row in rows
      if setting.items() <= row.items() and row[name] is not None
  ]


def _median(values: Iterable[float | None]) -> float | None:
  found = [value for value in values if value is not None]
  return statistics.median(found) if found else None


def _half_interval(values: Sequence[float]) -> float | None:
  from scipy import stats

  if len(values) < 2:
    return None
  quantile = stats.t.ppf(0.975, len(values) - 1)
  return float(quantile * statistics.stdev(values) / math.sqrt(len(values)))
