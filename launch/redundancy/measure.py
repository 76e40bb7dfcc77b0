"""Runs steps and deaths of all modes in turns, and notes the times."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import random
import statistics
import sys
import time
from typing import Any

import tqdm

from launch import processes
from launch.redundancy import deaths
from launch.redundancy import predict

_WARMUP = 5  # Rounds.
_WHOLE_EVERY = 4  # Deaths between steps without a death.
_LINE_EVERY = 5  # Rounds or repeats, where there is no terminal.


@dataclasses.dataclass(frozen=True)
class Step:
  """One committed step.

  Attributes:
    step_ms: From the order to run it until all processes were done.
    compute_ms: Rows, of the slowest process; so are refresh and apply.
    refresh_ms: Bringing replicas up to date.
    vote_ms: Agreeing on the commit, of the last process to come to it, which
      waits for nobody.
    apply_ms: Updating own layers and replicas.
    cpu_ms: Processor time of the process with most.
    refresh_bytes: Sent to replicas, by all nodes.
    host_bytes: Kept in host memory until the commit, by the node with most.
  """

  step_ms: float
  compute_ms: float
  refresh_ms: float
  vote_ms: float
  apply_ms: float
  cpu_ms: float
  refresh_bytes: int
  host_bytes: int


@dataclasses.dataclass(frozen=True)
class DeathTime:
  """One simulated death.

  Attributes:
    mode: Mode.
    victim: Node that dies, which is its stage.
    at: Index in its row of the instruction before which it dies.
    before: That instruction.
    died_ms: When it had finished what it did before.
    longer_ms: How much later the rows ended than without a death in the same
      repeat.
    plan_ms: Time to plan the rest, which is part of that.
    num_passes: Passes that were run after the death.
    planned_died_ms: When it should have died.
    predicted_longer_ms: What `longer_ms` should have been.
  """

  mode: str
  victim: int
  at: int
  before: str
  died_ms: float
  longer_ms: float
  plan_ms: float
  num_passes: int
  planned_died_ms: float
  predicted_longer_ms: float


def run_rounds(
    ours: processes.Processes, modes: Sequence[str], *, num_rounds: int
) -> dict[str, list[Step]]:
  """Returns the steps of each mode, entry `k` of all from the same batch.

  In each round the modes take turns in another order.
  """
  rng = random.Random(0)
  steps = {mode: [] for mode in modes}
  for step in show_progress(_WARMUP + num_rounds, "steps"):
    ours.ask(f"feed {step}")
    for mode in rng.sample(list(modes), len(modes)):
      start = time.perf_counter()
      answers = ours.ask(f"commit {mode}")
      secs = time.perf_counter() - start
      if step >= _WARMUP:
        steps[mode].append(make_step(secs, list(map(json.loads, answers))))
  return steps


def make_step(secs: float, answers: Sequence[Mapping[str, Any]]) -> Step:
  """Returns a step of `secs` from the answers of all processes."""
  most_ms = lambda name: 1e3 * max(answer[name] for answer in answers)
  return Step(
      step_ms=1e3 * secs,
      compute_ms=most_ms("compute_secs"),
      refresh_ms=most_ms("refresh_secs"),
      vote_ms=1e3 * min(answer["vote_secs"] for answer in answers),
      apply_ms=most_ms("apply_secs"),
      cpu_ms=most_ms("cpu_secs"),
      refresh_bytes=sum(answer["refresh_bytes"] for answer in answers),
      host_bytes=max(answer["host_bytes"] for answer in answers),
  )


def run_deaths(
    ours: processes.Processes,
    made: Mapping[str, predict.ModePlan],
    *,
    num_deaths: int,
    num_repeats: int,
) -> list[list[DeathTime]]:
  """Returns the deaths of each repeat, in the same order.

  All modes that have replicas take turns; each runs some steps without a death
  between those with one. Sums over the batch must be the same to the bit.

  Args:
    ours: The processes.
    made: The modes.
    num_deaths: Times of death of each node.
    num_repeats: How often each death is repeated.
  """
  planned = {
      mode: [
          death
          for victim in plan.roles.nodes
          for death in deaths.spread_deaths(
              plan.whole.timeline, victim=victim, num_deaths=num_deaths
          )
      ]
      for mode, plan in made.items()
      if plan.roles.shadows
  }
  ask = lambda command: list(map(json.loads, ours.ask(command)))
  ours.ask("feed 0")
  repeats = []
  for repeat in show_progress(1 + num_repeats, "deaths"):
    found = []
    for mode, entries in planned.items():
      whole, answers = [], []
      for k, death in enumerate(entries):
        if k % _WHOLE_EVERY == 0:
          whole.append(ask(f"compute {mode}"))
        answers.append(ask(f"die {mode} {death.victim} {death.at}"))
      for death, answer in zip(entries, answers, strict=True):
        found.append(make_death(mode, made[mode], death, whole, answer))
    if repeat:  # The first one fills caches.
      repeats.append(found)
  return repeats


def make_death(
    mode: str,
    plan: predict.ModePlan,
    death: deaths.Death,
    whole: Sequence[Sequence[Mapping[str, Any]]],
    answers: Sequence[Mapping[str, Any]],
) -> DeathTime:
  """Returns what a death came to, on two nodes.

  Args:
    mode: Name of the mode.
    plan: The mode.
    death: The death.
    whole: For some steps without a death, the answers of both processes.
    answers: Their answers with it.
  """
  survivor = answers[1 - death.victim]
  for step in whole:
    sums = {stage: s for a in step for stage, s in a["sums"].items()}
    assert survivor["sums"] == sums, (mode, death.victim, death.at)
  whole_secs = statistics.median(max(a["secs"] for a in step) for step in whole)
  return DeathTime(
      mode=mode,
      victim=death.victim,
      at=death.at,
      before=death.before,
      died_ms=1e3 * answers[death.victim]["died_secs"],
      longer_ms=1e3 * (survivor["secs"] - whole_secs),
      plan_ms=1e3 * survivor["plan_secs"],
      num_passes=survivor["num_passes"],
      planned_died_ms=death.died_ms,
      predicted_longer_ms=deaths.predict_longer_ms(
          death, plan.rows, plan.whole.timeline, plan.roles
      ),
  )


def show_progress(count: int, name: str) -> Iterator[int]:
  """Yields numbers below `count`; a bar on a terminal, else lines."""
  bar = tqdm.tqdm(range(count), desc=name, disable=not sys.stderr.isatty())
  for index in bar:
    yield index
    if bar.disable and (index + 1) % _LINE_EVERY == 0:
      print(f"{name} {index + 1} of {count}", file=sys.stderr, flush=True)
