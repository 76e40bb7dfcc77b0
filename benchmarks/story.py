"""Two runs that should end alike, one of which loses nodes, as lines of text.

A line for each step shows both losses, and which nodes died in it. The last
lines say what the deaths have cost, and what restarts from checkpoints would
have. Everything is read from what the runs leave behind.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import pathlib
import sys
import time
from typing import Any

import tqdm

from bamboo_jax.benchmarks import interleave
from bamboo_jax.metrics import jsonl, progress as progress_lib, summary as summary_lib
from bamboo_jax.recovery import durations

_MOST_LINES = 30  # Of a longer run every n-th step is shown.


@dataclasses.dataclass(frozen=True)
class Recorded:
  """What a run has left behind so far: its log; no more lines come once it `is_over`."""

  lines: Sequence[jsonl.Line] = ()
  is_over: bool = False

  @property
  def losses(self) -> dict[int, float | None]:
    """Loss of each step whose events are complete; None if it is not finite."""
    last = max((line["step"] for line in self.lines), default=0)
    return {
        line["step"]: line["loss"]
        for line in self.lines
        if "event" not in line and (self.is_over or line["step"] < last)
    }

  @property
  def recoveries(self) -> list[dict[str, Any]]:
    """Recoveries as `recovery.durations.report` returns them."""
    found = [l for l in self.lines if l.get("event") == "recovery"]
    return durations.report(found, {})


def render_title(names: Iterable[str], shape: tuple[int, int], *, spares: int) -> str:
  """Returns the introduction and the header of the table of steps.

  Args:
    names: Names of the runs, which are the columns of the table.
    shape: Number of pipelines and number of stages per pipeline.
  """
  num_pipelines, num_stages = shape
  nodes = _count(num_pipelines * num_stages, "node")
  return (
      f"Training twice at the same time, on {nodes}: "
      f"{_count(num_pipelines, 'pipeline')} of {_count(num_stages, 'stage')}, "
      f"and {_count(spares, 'spare node')}.\n"
      "Here nodes are virtual devices of one process; bamboo cluster really "
      "kills processes.\n"
      "Stage 1/3 is stage 3 of pipeline 1; both count from 0.\n"
      + "  ".join(["  step", *(f"{name:>12}" for name in names)])
  )


def render_steps(runs: Sequence[Recorded], *, after: int, num_steps: int) -> list[tuple[int, str]]:
  """Returns the steps after `after` that all runs have done, a line each.

  A run of more than 30 steps, `num_steps`, shows every n-th, and all in which
  nodes died.
  """
  losses = [run.losses for run in runs]
  deaths: dict[int, list[str]] = {}
  for run in runs:
    for recovery in run.recoveries:
      deaths.setdefault(recovery["step"], []).append(describe(recovery))
  every = -(-num_steps // _MOST_LINES)
  rows = []
  for step in sorted(set.intersection(*map(set, losses))):
    if step > after and (step % every == 0 or step in deaths):
      cells = [f"{step:>6}", *(_cell(found[step]) for found in losses)]
      rows.append((step, "  ".join(cells + ["; ".join(deaths.get(step, ()))])))
  return [(step, row.rstrip()) for step, row in rows]


def _cell(loss: float | None) -> str:
  return f"{'not finite' if loss is None else format(loss, '.6f'):>12}"


def describe(recovery: Mapping[str, Any]) -> str:
  """Returns one recovery of `recovery.durations.report` in a few words."""
  said, secs = durations.describe_death(recovery), recovery["kill_to_first_instruction_secs"]
  if recovery["rung"] != "shadow" or secs is None:
    return said
  ms = round(1e3 * secs)
  return f"{said} after {ms} ms" if ms else f"{said} at once"


def find_added_secs(plain: Recorded, run: Recorded) -> float | None:
  """Returns how much longer the steps with deaths took than those of `plain`.

  That of a step is the time from the end of the step before, so recoveries
  between steps count. None if it is not known of a step.
  """
  ends, plain_ends = (
      {
          line["step"]: line["account"]["secs"]
          for line in one.lines
          if "account" in line and line.get("event") in (None, "start")
      }
      for one in (run, plain)
  )
  steps = {recovery["step"] for recovery in run.recoveries}
  if not {*steps, *(step - 1 for step in steps)} <= ends.keys() & plain_ends.keys():
    return None
  lasted = lambda of, step: of[step] - of[step - 1]
  return sum(lasted(ends, step) - lasted(plain_ends, step) for step in steps)


def render_costs(plain: Recorded, run: Recorded, *, every_steps: int) -> list[str]:
  """Returns lines with the cost of deaths, and a lower bound of that of restarts in their place.

  The bound has the measured times of `run`. It leaves out the start of a process, the
  compilation of its programs, and the unfinished step in which a node died. No lines if no
  node died or nothing was timed.

  Args:
    every_steps: Steps from one checkpoint to the next; 0 without checkpoints.
  """
  recoveries = run.recoveries
  step_secs = summary_lib.median_but_first(
      [l["step_ms"] / 1e3 for l in run.lines if "step_ms" in l]
  )
  starts = [line for line in run.lines if line.get("event") == "start"]
  if step_secs is None or not (starts and recoveries):
    return []
  first = f"{_count(sum(len(r['names']) for r in recoveries), 'node')} died. "
  secs = find_added_secs(plain, run)
  if any(r["rung"] == "checkpoint" for r in recoveries):
    first += "Steps after the last checkpoint were repeated."
  elif secs is None:
    first += "No step was repeated."
  else:
    steps = len({r["step"] for r in recoveries})
    which = f"The {steps} steps" if steps > 1 else "The step"
    first += (
        f"{which} with a death took {abs(secs):.1f} s "
        f"{'longer' if secs >= 0 else 'less'}"
        f"{' in all' if steps > 1 else ''}. No step was repeated."
    )
  done = [recovery["step"] - 1 for recovery in recoveries]
  num_steps = sum(n % every_steps if every_steps else n for n in done)
  start_secs = starts[0]["account"]["secs"]
  saved = f"from checkpoints instead, one every {every_steps} steps"
  return [
      first,
      f"Restarts {saved if every_steps else 'instead, without checkpoints'}: "
      f"{_count(num_steps, 'step')} repeated, at least "
      f"{len(done) * start_secs + num_steps * step_secs:.1f} s lost ({len(done)} x "
      f"{start_secs:.1f} s to set up, {num_steps} x {step_secs:.2f} s).",
  ]


def render_control(control: Mapping[str, Any], summary: summary_lib.Summary) -> str:
  """Returns a line about a run's `control.json`; "" if it is of another step.

  Raises `ValueError` if the control has found the hash of the run.
  """
  if control.get("step") != summary.steps:
    return ""
  what = (
      f"step {control['step']} of the first run again without one of its "
      f"{control['shares']} shares"
  )
  if control["state_sha256"] == summary.state_sha256:
    raise ValueError(f"Control: {what} ends in the same state, so equal hashes prove " "nothing.")
  return f"control: {what} ends in another state, {control['state_sha256']}"


def render_next(bamboo: str) -> list[str]:
  """Returns suggested commands; `bamboo` is the path of the executable."""
  commands = {
      "cluster --config=quickstart --workdir=runs/cluster --page": (
          "a process for each node; kill any by button"
      ),
      "plan --config=quickstart": "the schedule, with its redundant passes",
      "--help": "all commands and configs",
  }
  width = max(map(len, commands))
  rows = (f"  {bamboo} {c:{width}}  # {text}" for c, text in commands.items())
  return ["Next:", *rows]


_POLL_SECS = 0.1


def run_all(
    folder: pathlib.Path, commands: Mapping[str, Sequence[str]], *, num_steps: int
) -> list[Recorded]:
  """Trains all `commands`, by name, in folders of that name, and prints a line for each step.

  On a terminal a bar shows how far they are. Without a step for 5 s, a line says
  what they are doing. Returns the runs once they are over. Raises `ValueError`
  if one fails; the others are ended then.
  """
  folder.mkdir(parents=True, exist_ok=True)
  twins = [
      interleave.Run(
          name, [*command, f"--workdir={folder / name}"], folder / name, folder / f"{name}.log"
      )
      for name, command in commands.items()
  ]
  total = len(twins) * num_steps
  bar = dict(total=total, unit="step", disable=not sys.stdout.isatty())
  shown, told_secs = 0, time.monotonic()
  try:
    with tqdm.tqdm(file=sys.stdout, leave=False, **bar) as progress:
      is_over = False
      while not is_over:
        ended = [twin.is_over() for twin in twins]
        is_over = all(ended)
        runs = [Recorded(twin.read(), end) for twin, end in zip(twins, ended, strict=True)]
        rows = render_steps(runs, after=shown, num_steps=num_steps)
        for shown, row in rows:  # noqa: B007
          progress.write(row, file=sys.stdout)
        done = sum(max(run.losses, default=0) for run in runs)
        progress.update(done - progress.n)
        now = time.monotonic()
        if rows:
          told_secs = now
        elif now > told_secs + progress_lib.Reminder.every_secs:
          told_secs = now
          progress.write("; ".join(map(_describe, twins)), file=sys.stdout)
        sys.stdout.flush()
        if not is_over:
          time.sleep(_POLL_SECS)
  finally:
    for twin in twins:
      twin.end()
  return runs


def _describe(twin: interleave.Run) -> str:
  """Returns the last line that a run has printed, shortened."""
  last = (twin.read_output() or ["starts"])[-1].removeprefix("pause: ")
  return f"{twin.name}: {last.partition(' loss=')[0]}"


def _count(number: int, noun: str) -> str:
  return f"{number} {noun}{'s' * (number != 1)}"
