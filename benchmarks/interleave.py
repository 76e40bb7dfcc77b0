"""Runs of commands: their output, what they log, and turns that make times comparable in pairs.

Machines drift, so no run is timed alone: all are started, and all but one are suspended. In each
round every run trains for some steps, in random order:

  round   0         1         2
          b a c     c b a     a c b      ->  ratios of the medians of a round

A run is a command of its own that writes `metrics.jsonl`; nothing in it knows of the others. The
step in which it is suspended is not counted.
"""

from collections.abc import Callable, Mapping, Sequence
import math
import os
import pathlib
import random
import signal
import statistics
import subprocess
import time

import numpy as np

from bamboo_jax.cluster import children
from bamboo_jax.metrics import jsonl, progress

Prepare = Callable[[], None]
WARMUP = 5  # Steps before the first round, which compile and warm up caches.
# Nodes that are suspended with all others are neither silent nor stopped.
NO_LIMITS = {
    f"cluster.{name}": 86_400.0
    for name in ("stopped_secs", "least_silence_secs", "most_silence_secs", "no_progress_secs")
}
_POLL_SECS = 0.02
_ERROR, _HINT = "error: ", " (traceback: --verbosity=1)"  # Around what a command says.
_NUM_DRAWS = 2000
_OUTPUT = "output.log"


class Run:
  """A run of its own processes, which starts at once; its output is added to a file.

  It calls `prepare` first; None in a process with JAX, which warns of that.

  Attributes:
    lines: Its log when it was last read.
  """

  def __init__(
      self,
      name: str,
      command: Sequence[str],
      folder: pathlib.Path,
      output: pathlib.Path,
      prepare: Prepare | None = children.end_with_parent,
  ) -> None:
    self.name, self._output = name, output
    self.lines: Sequence[jsonl.Line] = ()
    self._all: list[jsonl.Line] = []
    self._reader = jsonl.MetricsReader(folder / "metrics.jsonl")
    folder.mkdir(parents=True, exist_ok=True)
    self._start_bytes = output.stat().st_size if output.exists() else 0  # Of earlier runs.
    with output.open("ab") as file:
      self._process = subprocess.Popen(
          command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, preexec_fn=prepare
      )

  def is_over(self) -> bool:
    """Returns whether it has ended; raises `ValueError` with its last line if it has failed."""
    if code := self._process.poll():
      lines = self.read_output() or ["it said nothing"]
      # What was printed before it may have been written later.
      last = next((line for line in reversed(lines) if line.startswith(_ERROR)), lines[-1])
      last = last.removesuffix(_HINT).removeprefix(_ERROR).rstrip(".")
      raise ValueError(
          f"The run {self.name!r} {children.describe_exit(code)}: {last}; all that it said is in "
          f"{self._output}."
      )
    return code is not None

  def read(self) -> Sequence[jsonl.Line]:
    """Returns the lines of its log so far."""
    if new := self._reader.read():  # Reading costs others that are timed little.
      self._all += new
      self.lines = jsonl.fold(self._all)
    return self.lines

  def read_times_ms(self) -> list[float]:
    return [*jsonl.column(self.read(), "step_ms")[1]]

  def read_output(self) -> list[str]:
    """Returns the lines that it has printed so far."""
    text = self._output.read_bytes()[self._start_bytes :].decode(errors="replace")
    return text.strip().splitlines()

  def wait_for(self, num_steps: int) -> bool:
    """Blocks until it has logged so many steps; returns whether it goes on after that.

    Raises `ValueError` as `is_over`.
    """
    while len(self.read_times_ms()) < num_steps:
      if self.is_over():
        return False
      time.sleep(_POLL_SECS)
    return True

  def stop(self) -> None:
    """Suspends it: each process before its children, so that no new ones are missed."""
    _signal_all(self._process.pid, signal.SIGSTOP)

  def go(self) -> None:
    """Lets it go on: children first, so that no parent sees a child suspended."""
    _signal_all(self._process.pid, signal.SIGCONT)

  def end(self) -> None:
    """Kills what is left of it, also suspended processes."""
    if self._process.poll() is None:
      _signal_all(self._process.pid, signal.SIGKILL)
      self._process.kill()  # If a thread of it has just ended, it was passed over.
      self._process.wait()


def call(
    command: Sequence[str],
    folder: pathlib.Path,
    *,
    name: str,
    limit_secs: float = math.inf,
    prepare: Prepare | None = children.end_with_parent,
) -> None:
  """Runs a command to its end; its output is added to a file in `folder`.

  Raises `ValueError` as `Run.is_over`, or if it lasts too long.
  """
  run = Run(name, command, folder, folder / _OUTPUT, prepare)
  until_secs = time.monotonic() + limit_secs
  try:
    while not run.is_over():
      if time.monotonic() > until_secs:
        last = "".join(run.read_output()[-1:])
        raise ValueError(
            f"The run {name!r} is not done after {limit_secs} s: {last}; all that it said is in "
            f"{folder / _OUTPUT}."
        )
      time.sleep(_POLL_SECS)
  finally:
    run.end()


def take_turns(runs: Sequence[Run], *, steps: int) -> dict[str, list[float]]:
  """Returns for each run its median step in ms of each round.

  Blocks until a run has ended, and then until the others have.
  """
  rounds: dict[str, list[float]] = {run.name: [] for run in runs}
  rng, is_going = random.Random(0), True
  while is_going:
    medians = {}
    for run in rng.sample(runs, len(runs)):
      run.go()
      num_before = len(run.read_times_ms()) + 1  # In this step it was suspended.
      is_going = run.wait_for(num_before + steps) and is_going
      run.stop()
      if len(times := run.read_times_ms()[num_before : num_before + steps]) == steps:
        medians[run.name] = statistics.median(times)
    if len(medians) == len(runs):
      for name, median in medians.items():
        rounds[name].append(median)
  for run in runs:
    run.go()
    run.wait_for(10**9)
  return rounds


def compare(
    commands: Mapping[str, Sequence[str]], folders: Mapping[str, pathlib.Path], *, steps: int
) -> dict[str, list[float]]:
  """Starts all runs, one after the other, and returns as `take_turns`.

  Raises `ValueError` if a run fails, or ends before a whole round.
  """
  runs: list[Run] = []
  try:
    for name, command in commands.items():
      with progress.waiting(f"{name} starts"):
        runs.append(Run(name, command, folders[name], folders[name] / "output.log"))
        runs[-1].wait_for(WARMUP)
        runs[-1].stop()
    with progress.waiting(f"{len(runs)} runs take turns of {steps} steps"):
      rounds = take_turns(runs, steps=steps)
  finally:
    for run in runs:
      run.end()
  if not all(rounds.values()):
    raise ValueError(f"A run ended before each had {steps} steps; set config.num_steps higher.")
  return rounds


def render_ratio(times: Sequence[float], to: Sequence[float]) -> str:
  """Returns the median ratio of pairs, and its 95 % interval by bootstrap over them."""
  ratios = np.array([v / t for v, t in zip(times, to, strict=True)])
  if len(ratios) == 1:
    return f"{ratios[0]:.3f}"
  draws = np.random.default_rng(0).choice(ratios, size=(_NUM_DRAWS, len(ratios)))
  low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
  return f"{np.median(ratios):.3f} [{low:.3f}, {high:.3f}]"


def _signal_all(pid: int, number: signal.Signals) -> None:
  """Sends a signal to a process and all below it, suspending from above."""
  try:
    if number == signal.SIGSTOP:
      os.kill(pid, number)
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    for child in {int(word) for task in tasks for word in task.read_text().split()}:
      _signal_all(child, number)
    if number != signal.SIGSTOP:
      os.kill(pid, number)
  except (FileNotFoundError, ProcessLookupError):
    return  # It has ended meanwhile.
