"""Runs steps of both executors in turns, and notes the times."""

from collections.abc import Sequence
import dataclasses
import json
import random
import time

from launch import processes
from launch.redundancy import measure

MODES = ("none", "lazy", "eager")
VARIANTS = tuple(f"{e}/{mode}" for e in ("rows", "spmd") for mode in MODES)

_WARMUP = 5  # Rounds.


@dataclasses.dataclass(frozen=True)
class Step:
  """One committed step.

  Attributes:
    step_ms: From the order to run it until all processes were done.
    cpu_ms: Processor time of the process with most.
    host_bytes: Kept in host memory by rows, on the node with most; of a program
      its ledger tells.
  """

  step_ms: float
  cpu_ms: float
  host_bytes: int


def run_rounds(
    ours: processes.Processes, *, num_rounds: int
) -> tuple[dict[str, list[Step]], float]:
  """Returns the steps of each variant, entry `k` of all from the same batch.

  In each round the variants take turns in another order.

  Returns:
    The steps, and the relative difference of parameters between programs and
    rows after those that warmed up.
  """
  rng = random.Random(0)
  steps = {variant: [] for variant in VARIANTS}
  difference = 0.0
  for step in measure.show_progress(_WARMUP + num_rounds, "steps"):
    ours.ask(f"feed {step}")
    for variant in rng.sample(VARIANTS, len(VARIANTS)):
      found = _run(ours, variant)
      if step >= _WARMUP:
        steps[variant].append(found)
    if step + 1 == _WARMUP:
      answers = map(json.loads, ours.ask("difference"))
      difference = max(answer["difference"] for answer in answers)
  return steps, difference


def _run(ours: processes.Processes, variant: str) -> Step:
  executor, mode = variant.split("/")
  command = {"rows": "commit", "spmd": "run"}[executor]
  start = time.perf_counter()
  answers = list(map(json.loads, ours.ask(f"{command} {mode}")))
  step_ms = 1e3 * (time.perf_counter() - start)
  return Step(
      step_ms=step_ms,
      cpu_ms=1e3 * max(answer["cpu_secs"] for answer in answers),
      host_bytes=max(answer.get("host_bytes", 0) for answer in answers),
  )


def take_most(
    answers: Sequence[dict[str, dict[str, float]]],
) -> dict[str, dict[str, float]]:
  """Returns the most of all processes of what `build_executors` answered."""
  return {
      variant: {
          key: max(answer[variant][key] for answer in answers)
          for key in answers[0][variant]
      }
      for variant in answers[0]
  }
