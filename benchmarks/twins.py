"""Trainings in processes of their own, at the same time and shown together."""

from collections.abc import Mapping, Sequence
import pathlib
import subprocess
import sys
import time

import tqdm

from bamboo_jax.benchmarks import story
from bamboo_jax.cluster import children
from bamboo_jax.metrics import jsonl, progress as progress_lib

_POLL_SECS = 0.1


class Twin:
  """A training that runs in `folder / name`, and what it has logged so far."""

  def __init__(self, folder: pathlib.Path, name: str, command: Sequence[str]) -> None:
    """Starts it; its output is added to `folder / name.log`."""
    self.name = name
    self.output = folder / f"{name}.log"
    self._reader = jsonl.MetricsReader(folder / name / "metrics.jsonl")
    self._lines: list[jsonl.Line] = []
    with open(self.output, "ab") as output:
      self._start_bytes = output.tell()  # Before it are earlier runs.
      self.process = subprocess.Popen(
          [*command, f"--workdir={folder / name}"],
          stdin=subprocess.DEVNULL,
          stdout=output,
          stderr=subprocess.STDOUT,
          preexec_fn=children.end_with_parent,
      )

  def read(self) -> story.Recorded:
    """Returns the metrics and the state of the run so far."""
    is_over = self.process.poll() is not None
    self._lines += self._reader.read()
    return story.Recorded(self.name, jsonl.fold(self._lines), is_over)

  def describe(self) -> str:
    """Returns the last line that the run printed, shortened."""
    with open(self.output, "rb") as output:
      output.seek(self._start_bytes)
      said = output.read().decode(errors="replace").splitlines()
    last = said[-1].removeprefix("pause: ") if said else "starts"
    return f"{self.name}: {last.partition(' loss=')[0]}"

  def check(self) -> None:
    """Raises `ValueError` if it has failed, with its last line."""
    if code := self.process.poll():
      said = children.read_tail(self.output, num_lines=20).strip()
      last = said.splitlines()[-1] if said else "it said nothing"
      raise ValueError(
          f"The run {self.name!r} {children.describe_exit(code)}: "
          f"{last.removeprefix('error: ').rstrip('.')}; all that it said is in "
          f"{self.output}."
      )


def run_all(
    folder: pathlib.Path, commands: Mapping[str, Sequence[str]], *, num_steps: int
) -> list[story.Recorded]:
  """Trains all `commands`, by name, and prints a line for each step.

  On a terminal a bar shows how far they are. Without a step for 5 s, a line says
  what they are doing. Returns the runs once they are over. Raises `ValueError`
  if one fails; the others are ended then.
  """
  folder.mkdir(parents=True, exist_ok=True)
  twins = [Twin(folder, *named) for named in commands.items()]
  total = len(twins) * num_steps
  bar = dict(total=total, unit="step", disable=not sys.stdout.isatty())
  shown, told_secs = 0, time.monotonic()
  try:
    with tqdm.tqdm(file=sys.stdout, leave=False, **bar) as progress:
      is_over = False
      while not is_over:
        is_over = all(t.process.poll() is not None for t in twins)
        runs = [twin.read() for twin in twins]
        rows = story.render_steps(runs, after=shown, num_steps=num_steps)
        for shown, row in rows:  # noqa: B007
          progress.write(row, file=sys.stdout)
        done = sum(max(run.losses, default=0) for run in runs)
        progress.update(done - progress.n)
        now = time.monotonic()
        if rows:
          told_secs = now
        elif now > told_secs + progress_lib.Reminder.every_secs:
          told_secs = now
          progress.write("; ".join(t.describe() for t in twins), file=sys.stdout)
        for twin in twins:
          twin.check()
        sys.stdout.flush()
        if not is_over:
          time.sleep(_POLL_SECS)
  finally:
    for twin in twins:
      twin.process.kill()
      twin.process.wait()
  return runs
