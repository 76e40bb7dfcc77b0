"""Processes that answer commands, and variants that take turns in them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import json
import pathlib
import random
import subprocess
import sys
import time
from typing import Any

import tqdm

from bamboo_jax import config as config_lib
from bamboo_jax.plan import planner

WARMUP = 5  # Discarded rounds, which warm up caches.

# How numbers of all processes are merged; the last process to vote waits for
# none.
_HOW = {"vote_ms": min, "refresh_bytes": sum}
_HINT = " (traceback: --verbosity=1)"  # Of a command, at the end of an error.
_LINE_EVERY = 5  # Rounds between lines, without a terminal.

Row = Mapping[str, Any]  # A row of a table: measurements by name.


class Processes:
  """The processes of one system, one per stage, that run steps together.

  Each reads a command per line and answers with a line of JSON after the word
  "answer", because libraries print too. Its first answer means that it is
  ready.
  """

  def __init__(self, commands: Sequence[Sequence[str]]) -> None:
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    self._processes = [subprocess.Popen(c, **pipes) for c in commands]

  def __enter__(self) -> "Processes":
    try:
      self._read()
    except BaseException:
      self.__exit__()
      raise
    return self

  def __exit__(self, *unused_error: object) -> None:
    for process in self._processes:
      process.stdin.close()
    for process in self._processes:
      try:
        process.wait(timeout=10)
      except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

  def ask(self, command: str) -> list[Any]:
    """Sends a command to all processes; returns their answers, blocks.

    Raises `OSError` if a process has ended.
    """
    for process in self._processes:
      process.stdin.write(command + "\n")
      process.stdin.flush()
    return self._read()

  def _read(self) -> list[Any]:
    answers = []
    for rank, process in enumerate(self._processes):
      lines = (l for l in process.stdout if l.startswith("answer "))
      line = next(lines, None)
      if line is None:
        raise OSError(f"Stage {rank} of the benchmark ended with code {process.wait()}.")
      answers.append(json.loads(line.removeprefix("answer ")))
    return answers

  def run_step(self, variant: str) -> Row:
    """Runs a step of a variant; returns its measurements, except its time."""
    answers = self.ask(f"run {variant}")
    return merge([{k: a[k] for k in a if k != "ran"} for a in answers])


@dataclasses.dataclass(frozen=True)
class Subject:
  """A pipeline, and the sizes of its measurement.

  Attributes:
    profile_path: As commands have it, quoted where it has blanks.
    formats: Of figures, see `metrics.plots`.
    num_rounds: Steps of each variant.
  """

  config: config_lib.Config
  plan: planner.Plan
  profile_path: str
  out: pathlib.Path
  formats: Sequence[str]
  num_rounds: int

  @property
  def bounds(self) -> str:
    """The partition, as in commands: 0,10,18."""
    return ",".join(map(str, self.plan.partition.bounds))


def take_turns(
    variants: Mapping[str, Callable[[], Row]],
    num_rounds: int,
    *,
    begin: Callable[[int], Any],
    when_warm: Callable[[], Any] | None = None,
) -> dict[str, list[Row]]:
  """Returns a row per variant and round, `step_ms` included.

      round   0         1         2
              b a c     c b a     a c b      ->  entry k of all: the same batch

  A variant runs the step of a round and returns its other measurements; `begin`
  is called before each round and not timed. `WARMUP` rounds precede the
  returned ones; `when_warm` is called after them.
  """
  rng = random.Random(0)
  rows = {name: [] for name in variants}
  for step in show_progress(range(WARMUP + num_rounds), name="rounds"):
    if step == WARMUP and when_warm is not None:
      when_warm()
    begin(step)
    for name in rng.sample(list(variants), len(variants)):
      start = time.perf_counter()
      found = variants[name]()
      step_ms = 1e3 * (time.perf_counter() - start)
      if step >= WARMUP:
        rows[name].append({"step_ms": step_ms, **found})
  return rows


def merge(answers: Sequence[Row]) -> Row:
  """Merges the rows of all processes, by default with the maximum.

  Numbers may be missing in some rows.
  """
  merged = {}
  for name in dict.fromkeys(name for answer in answers for name in answer):
    merged[name] = _HOW.get(name, max)(a[name] for a in answers if name in a)
  return merged


def show_progress(rounds: Sequence[int], *, name: str) -> Iterator[int]:
  """Yields the rounds; shows a bar on a terminal, else lines."""
  bar = tqdm.tqdm(rounds, desc=name, disable=not sys.stderr.isatty())
  for index in bar:
    yield index
    if bar.disable and (index + 1) % _LINE_EVERY == 0:
      print(f"{name} {index + 1}", file=sys.stderr, flush=True)


def run_training(command: Sequence[str], *, name: str) -> None:
  """Runs a command silently; `ValueError` with its last output if it fails."""
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    said = (done.stderr.splitlines() or ["no message"])[-1]
    said = said.removeprefix("error: ").removesuffix(_HINT)
    raise ValueError(f"{name}: {said}")
