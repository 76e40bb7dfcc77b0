"""Ablations: their trials, and the rows of their results."""

from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses
import itertools
import json
import os
import pathlib
import random
import re
import shlex
import statistics
import sys
from typing import Any, NamedTuple

from bamboo_jax import base, config
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.benchmarks import interleave
from bamboo_jax.cli import config_flag
from bamboo_jax.metrics import jsonl, summary as summary_lib, table as table_lib

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


@dataclasses.dataclass(frozen=True)
class Trial:
  """One run of a setting, with fields and values as the user wrote them."""

  setting: tuple[tuple[str, str], ...]
  repeat: int

  def __str__(self) -> str:
    return ",".join(f"{field}={value}" for field, value in self.setting)

  @property
  def flags(self) -> list[str]:
    """Flags of the run: `--faults` and `--trace`, else options of a config."""
    return [
        f"--{'' if field in FILES else 'config.'}{field}={value}" for field, value in self.setting
    ]

  @property
  def folder(self) -> str:
    """Folder of the run, below the folder of the ablation."""
    return re.sub(r"[^\w.,=+-]", "_", str(self)) + f"/{self.repeat}"


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


def plan_trials(sweeps: Sweeps, *, repeats: int) -> list[Trial]:
  """Returns all runs, repeat by repeat: every combination of values.

  Each repeat has another order, so that a machine that slows down over time
  affects all settings alike.
  """
  settings = [
      tuple(zip(sweeps, values, strict=True)) for values in itertools.product(*sweeps.values())
  ]
  rng = random.Random(0)
  return [
      Trial(setting, repeat)
      for repeat in range(repeats)
      for setting in rng.sample(settings, len(settings))
  ]


class Job(NamedTuple):
  """A trial to run below a folder.

  Attributes:
    module: Of the command, such as `bamboo_jax.launch.train`.
    arguments: Beside those of the trial.
    is_timed: Whether its row has times; a run beside others has none.
  """

  trial: Trial
  module: str
  arguments: tuple[str, ...]
  workdir: str
  is_timed: bool

  def __str__(self) -> str:
    return f"{self.trial} repeat={self.trial.repeat}"

  @property
  def folder(self) -> pathlib.Path:
    return pathlib.Path(self.workdir, self.trial.folder)

  @property
  def command(self) -> list[str]:
    own = [*self.trial.flags, f"--workdir={self.folder}"]
    return [sys.executable, "-m", self.module, *self.arguments, *own]


def run_job(job: Job) -> Row:
  """Returns the row of a trial; raises `ValueError` if it fails.

  A run that ended early goes on, unless its options were others.
  """
  file = job.folder / "options.json"
  skipped = ("--program_cache=", "--figure_format=")  # They change no result.
  told = json.dumps([job.module, *(a for a in job.arguments if not a.startswith(skipped))])
  if file.exists() and file.read_text() != told:
    raise ValueError(
        f"{job.folder} has a run with other options, {file.read_text()}, got {told}: name another "
        "--workdir."
    )
  job.folder.mkdir(parents=True, exist_ok=True)
  base.write_atomically(file, told)
  interleave.call(job.command, job.folder, name=str(job))
  row = read_row(job.folder, job.trial)
  return row if job.is_timed else {**row, **dict.fromkeys(TIMES)}


def take_turns(jobs: Sequence[Job], sweeps: Sweeps, *, rival: str | None, steps: int) -> list[Row]:
  """Returns the rows of runs that take turns; writes `turns.csv`, and prints ratios.

  Raises `ValueError` as `interleave.compare`.
  """
  first = next(j for j in jobs if all(sweeps[f][0] == value for f, value in j.trial.setting))
  jobs = [first, *(job for job in jobs if job is not first)]
  limits = interleave.NO_LIMITS if first.module.endswith("cluster") else {}
  more = [f"--config.{name}={value}" for name, value in limits.items()]
  commands = {str(job.trial): [*job.command, *more] for job in jobs}
  folders = {str(job.trial): job.folder for job in jobs}
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
  for name, own in rounds.items():
    ratio = interleave.render_ratio(own, rounds[str(first.trial)])
    median_ms = statistics.median(own)
    print(f"{name} step_ms={median_ms:.1f} pairs={len(own)} ratio_to_first={ratio}", flush=True)
  return [
      {
          **read_row(job.folder, job.trial),
          **dict.fromkeys(TIMES),
          "step_ms": statistics.median(rounds[str(job.trial)]),
      }
      for job in jobs
  ]


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
