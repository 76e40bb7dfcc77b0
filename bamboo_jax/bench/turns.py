"""Processes that answer commands, and variants that take turns in them."""

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
import dataclasses
import json
import pathlib
import random
import subprocess
import sys
import time
from typing import Any

import ml_collections
import tqdm

from bamboo_jax.plan import planner

WARMUP = 5  # Rounds that are left out, as they fill caches.

_LINE_EVERY = 5  # Rounds, where there is no terminal.

Row = Mapping[str, Any]  # A row of a table: what was measured, by name.
Variant = Callable[[], Row]  # Runs a step; returns all but its time.


class Processes:
  """The processes of one system, one per stage, that run steps together.

  Each reads a command per line and answers with a line of JSON after the word
  "answer", because libraries print too. Its first answer means that it is
  ready.
  """

  def __init__(self, commands: Sequence[Sequence[str]]) -> None:
    self._processes = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for command in commands
    ]

  def __enter__(self) -> "Processes":
    try:
      for rank in range(len(self._processes)):
        self._read(rank)
    except BaseException:
      self._close()
      raise
    return self

  def __exit__(self, *unused_error: object) -> None:
    self._close()

  def ask(self, command: str) -> list[Any]:
    """Returns the answers of all processes; blocks.

    Raises `OSError` if a process has ended.
    """
    for process in self._processes:
      process.stdin.write(command + "\n")
      process.stdin.flush()
    return [self._read(rank) for rank in range(len(self._processes))]

  def _read(self, rank: int) -> Any:
    for line in self._processes[rank].stdout:
      if line.startswith("answer "):
        return json.loads(line.removeprefix("answer "))
    code = self._processes[rank].wait()
    raise OSError(f"Stage {rank} of the benchmark ended with code {code}.")

  def _close(self) -> None:
    for process in self._processes:
      process.stdin.close()
    for process in self._processes:
      try:
        process.wait(timeout=10)
      except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclasses.dataclass(frozen=True)
class Subject:
  """A pipeline, and how much of it is measured.

  Attributes:
    num_rounds: Steps of each variant.
    num_deaths: Times of death in a step, of each node.
    num_repeats: How often each death is repeated.
  """

  config: ml_collections.ConfigDict
  plan: planner.Plan
  profile_path: pathlib.Path
  out: pathlib.Path
  num_rounds: int
  num_deaths: int
  num_repeats: int

  @property
  def bounds(self) -> str:
    """The partition, as commands have it: 0,10,18."""
    return ",".join(map(str, self.plan.partition.bounds))


def take_turns(
    variants: Mapping[str, Variant],
    num_rounds: int,
    *,
    begin: Callable[[int], Any],
    when_warm: Callable[[], Any] | None = None,
) -> dict[str, list[Row]]:
  """Returns a row per variant and round, its `step_ms` among them.

      round   0         1         2
              b a c     c b a     a c b      ->  entry k of all: the same batch

  A variant runs the step of a round and returns what else it measured; `begin`
  is called before each round and not timed. There are `WARMUP` rounds before
  those that are returned; in between `when_warm` is called.
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


def merge(
    answers: Sequence[Row],
    *,
    least: Collection[str] = (),
    total: Collection[str] = (),
) -> Row:
  """Returns the rows of all processes as one: the maximum of each number.

  Of the names in `least` it is the minimum, of those in `total` the sum. Rows
  may lack a number.
  """
  merged = {}
  for name in dict.fromkeys(name for answer in answers for name in answer):
    how = min if name in least else sum if name in total else max
    merged[name] = how(a[name] for a in answers if name in a)
  return merged


def show_progress(rounds: Iterable[int], *, name: str) -> Iterator[int]:
  """Yields the rounds; shows a bar on a terminal, else lines."""
  bar = tqdm.tqdm(rounds, desc=name, disable=not sys.stderr.isatty())
  for index in bar:
    yield index
    if bar.disable and (index + 1) % _LINE_EVERY == 0:
      print(f"{name} {index + 1}", file=sys.stderr, flush=True)
