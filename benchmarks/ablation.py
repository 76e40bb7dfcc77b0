"""Ablations: their trials, the rows of their results; tables, paired differences and the figure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
import hashlib
import itertools
import json
import os
import pathlib
import random
import re
import shlex
import statistics
import sys
import textwrap
from typing import Any, NamedTuple

from bamboo_jax import base, config
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.base import packaged
from bamboo_jax.benchmarks import interleave
from bamboo_jax.cli import config_flag
from bamboo_jax.experiments import output
from bamboo_jax.metrics import jsonl, palette, plots, summary as summary_lib, table as table_lib

# Swept fields that are flags of the run, and name a file.
FILES = ("faults", "trace")

Row = Mapping[str, str | int | float | None]
Sweeps = Mapping[str, Sequence[str]]  # Values of each field, as given.

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
TIMES = (*("step_ms", "tokens_per_sec", "bubble_pct", "pause_ms"), *("samples_per_wall_sec", "usd"))
# Runs that differ in a setting are compared where these are the same.
_BLOCKS = ("seed", *FILES)

_DOT = dict(marker="o", color=palette.BLUE, linestyle="", alpha=0.5)
_MEAN = dict(marker="D", color=palette.RED, markersize=5, linewidth=1.5)
_MOST_COLUMNS = 3  # Of panels.


class Trial(NamedTuple):
  """One run of a setting, with fields and values as the user wrote them.

  Attributes:
    module: Of the command, such as `bamboo_jax.launch.train`.
    arguments: Beside those of the setting.
    workdir: Of the ablation.
    is_timed: Whether its row has times; a run beside others has none.
    inputs: Of `digest_inputs`.
  """

  setting: tuple[tuple[str, str], ...]
  repeat: int
  module: str = ""
  arguments: tuple[str, ...] = ()
  workdir: str = ""
  is_timed: bool = True
  inputs: str = ""

  def __str__(self) -> str:
    return f"{self.name} repeat={self.repeat}"

  @property
  def name(self) -> str:
    return ",".join(f"{field}={value}" for field, value in self.setting)

  @property
  def folder(self) -> pathlib.Path:
    name = re.sub(r"[^\w.,=+-]", "_", self.name)
    return pathlib.Path(self.workdir, name, str(self.repeat))

  @property
  def command(self) -> list[str]:
    """Files are flags of the run, `--faults` and `--trace`, other fields options of its config."""
    own = [f"--{'' if field in FILES else 'config.'}{field}={v}" for field, v in self.setting]
    return [sys.executable, "-m", self.module, *self.arguments, *own, f"--workdir={self.folder}"]


def read_sweeps(texts: Iterable[str], others: Collection[str] = ()) -> dict[str, dict[str, Any]]:
  """Returns options of the config, or `others`, and their values by the given texts.

  The sweeps are such as `redundancy.mode=none,lazy`. Commas inside brackets do not
  separate values. Raises `ValueError` if there is no such option, or a value is missing
  or repeated.
  """
  sweeps: dict[str, dict[str, Any]] = {}
  for text in texts:
    field, _, rest = text.partition("=")
    given = _split(rest)
    values = {value: config_flag.parse_literal(value) for value in given}
    if not field or "" in values:
      raise ValueError(
          f"--sweep={text} must be a field of the config and its values, such "
          "as redundancy.mode=none,lazy."
      )
    same = any(a == b for a, b in itertools.combinations(values.values(), 2))  # As 1 and 1.0.
    if same or len(values) < len(given):
      raise ValueError(f"--sweep={text} names a value twice.")
    if field in sweeps:
      raise ValueError(f"--sweep names {field} twice.")
    if field not in others:
      config.Config.find_kind(field)
    sweeps[field] = values
  return sweeps


def plan_trials(sweeps: Sweeps, *, repeats: int, **facts: Any) -> list[Trial]:
  """Returns all runs, repeat by repeat: every combination of values.

  Each repeat has another order, so that a machine that slows down over time
  affects all settings alike. `facts` are other fields of the trials.
  """
  settings = [
      tuple(zip(sweeps, values, strict=True)) for values in itertools.product(*sweeps.values())
  ]
  rng = random.Random(0)
  return [
      Trial(setting, repeat, **facts)
      for repeat in range(repeats)
      for setting in rng.sample(settings, len(settings))
  ]


def digest_inputs(options: config.Config, trial: Trial, files: Iterable[str | None]) -> str:
  """Returns a hash of what the flags of a trial only name: its config, code and `files`."""
  own = dict(trial.setting)
  code = base.find_code({**options.to_dict(), "swept": [*own.values()]})
  named = [options.plan.profile, *files, *map(own.get, (*FILES, "plan.profile"))]
  paths = [path for text in named if text for path in text.split(",")]
  contents = [packaged.find_file(path).read_bytes() for path in paths]
  return hashlib.sha256(f"{options} {code} {contents}".encode()).hexdigest()[:12]


def run_trial(trial: Trial) -> Row:
  """Returns the row of a trial; raises `ValueError` if it fails.

  A run that ended early goes on, unless its options or inputs were others.
  """
  file = trial.folder / "options.json"
  skipped = ("--program_cache=", "--figure_format=")  # They change no result.
  options = [trial.module, *(a for a in trial.arguments if not a.startswith(skipped))]
  told = json.dumps([*options, trial.inputs])
  if file.exists() and file.read_text() != told:
    raise ValueError(
        f"{trial.folder} has a run with other options, files or code, {file.read_text()}, got "
        f"{told}: name another --workdir."
    )
  trial.folder.mkdir(parents=True, exist_ok=True)
  base.write_atomically(file, told)
  interleave.call(trial.command, trial.folder, name=str(trial))
  row = read_row(trial)
  return row if trial.is_timed else {**row, **dict.fromkeys(TIMES)}


def take_turns(
    trials: Sequence[Trial], sweeps: Sweeps, *, rival: str | None, steps: int
) -> list[Row]:
  """Returns the rows of runs that take turns; writes `turns.csv`, and prints ratios.

  Raises `ValueError` as `interleave.compare`.
  """
  first = next(t for t in trials if all(sweeps[f][0] == value for f, value in t.setting))
  trials = [first, *(trial for trial in trials if trial is not first)]
  limits = interleave.NO_LIMITS if first.module.endswith("cluster") else {}
  more = [f"--config.{name}={value}" for name, value in limits.items()]
  commands = {trial.name: [*trial.command, *more] for trial in trials}
  folders = {trial.name: trial.folder for trial in trials}
  workdir = pathlib.Path(first.workdir)
  if rival:
    folders["rival"] = workdir / "rival"
    commands["rival"] = [*shlex.split(rival), f"--workdir={folders['rival']}"]
  for name, folder in folders.items():
    if (folder / "metrics.jsonl").exists():
      raise ValueError(f"{folder} has a run of {name}; runs that take turns start anew.")
  rounds = interleave.compare(commands, folders, steps=steps)
  found = [
      {"round": k, "run": name, "step_ms": ms}
      for name, own in rounds.items()
      for k, ms in enumerate(own)
  ]
  base.write_atomically(workdir / "turns.csv", table_lib.to_csv(table_lib.of(found)))
  medians_ms = {name: statistics.median(own) for name, own in rounds.items()}
  for name, own in rounds.items():
    ratio = interleave.render_ratio(own, rounds[first.name])
    print(
        f"{name} step_ms={medians_ms[name]:.1f} pairs={len(own)} ratio_to_first={ratio}", flush=True
    )
  return [{**read_row(t), **dict.fromkeys(TIMES), "step_ms": medians_ms[t.name]} for t in trials]


def read_row(trial: Trial) -> Row:
  """Returns the row of a finished run; medians exclude the first step.

  Samples per second of wall time exclude it too, and include pauses,
  evaluations, checkpoints and lost work. Tokens per second are those within a
  step.
  """
  summary = summary_lib.read_summary(trial.folder / "summary.json")
  lines = jsonl.read_lines(trial.folder / "metrics.jsonl")
  steps = [line for line in lines if "event" not in line][1:]
  median = lambda name: _median(line.get(name) for line in steps)
  first, last = account_lib.read_last(lines, up_to_step=1), account_lib.read_last(lines)
  secs, cost = last.secs - first.secs, summary.more.get("cost", {})
  pauses = [r["kill_to_step_end_secs"] for r in summary.recoveries]  # Since the last start.
  return {
      **dict(trial.setting),
      "repeat": trial.repeat,
      "step_ms": median("step_ms"),
      "tokens_per_sec": median("tokens_per_sec"),
      "bubble_pct": median("bubble_pct"),
      "final_loss": summary.final_loss,
      "num_recoveries": sum(line.get("event") == "recovery" for line in lines),
      "pause_ms": _median(1e3 * secs for secs in pauses if secs is not None),
      "samples": cost.get("num_samples"),
      "samples_dropped": summary.more.get("samples_dropped"),
      "samples_per_wall_sec": ((last.num_samples - first.num_samples) / secs if secs else None),
      "usd": cost.get("cost_usd"),
      "state_sha256": summary.state_sha256,
  }


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


def summarise(rows: Sequence[Row], fields: Sequence[str]) -> list[Row]:
  """Returns mean and 95 % interval (Student's t) of metrics by setting."""
  groups: dict[tuple[Any, ...], list[Row]] = {}
  for row in rows:
    groups.setdefault(tuple(row[f] for f in fields), []).append(row)
  return [
      {
          **dict(zip(fields, setting, strict=True)),
          "repeats": len(group),
          **output.estimates({n: _values(group, n) for n in METRICS}),
          "same_state": ("yes" if len({r["state_sha256"] for r in group}) == 1 else "no"),
      }
      for setting, group in groups.items()
  ]


def subtract(rows: Sequence[Row], sweeps: Sweeps) -> list[Row]:
  """Returns differences of settings to the first: mean and 95 % interval.

     seed=1   seed=2          Fields of `_BLOCKS` and the repeat make pairs;
  a  310  <-  290  <-         a setting is all other fields. What varies
  b  330  --  312  --   +21   between pairs is not in the interval.
  """
  fields = [field for field in sweeps if field not in _BLOCKS]
  if not fields:
    return []
  first = tuple(sweeps[field][0] for field in fields)
  groups: dict[tuple[Any, ...], dict[tuple[Any, ...], Row]] = {}
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
            **output.estimates(
                {n: [a[n] - b[n] for a, b in pairs if None not in (a[n], b[n])] for n in METRICS}
            ),
        }
    )
  return found


def _show(row: Row) -> dict[str, str]:
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
    folder: str | os.PathLike[str], rows: Sequence[Row], sweeps: Sweeps
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


def draw(rows: Sequence[Row], sweeps: Sweeps) -> Any:
  """Returns a figure with a panel for each metric that differs between runs.

  Runs are dots; settings with several runs have their mean and its interval.
  Metrics that are equal in all runs are listed below; fields with one value
  are left out. Panels show the range of the runs, of wide intervals a part.
  """
  lines = plots.load("lines")

  swept = [field for field, values in sweeps.items() if len(values) > 1] or [*sweeps]
  groups: dict[str, list[Row]] = {}
  for row in rows:
    groups.setdefault(", ".join(row[f] for f in swept), []).append(row)
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
  fields = textwrap.fill(", ".join(swept), int(10 * size[0]))
  grid[0, 0].set_title(plots.plain(fields), loc="left", fontsize=10)
  if panels != same and same:
    facts = (f"{METRICS[n]}: {[*found[n]][0]:g}" for n in same)
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


def _values(rows: Sequence[Row], name: str) -> list[float]:
  return [row[name] for row in rows if row[name] is not None]
