"""Runs Bamboo's artifact with many seeds on all cores."""

from collections.abc import Sequence
import dataclasses
import itertools
import time

from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.published.bamboo import artifact
from bamboo_jax.sim import monte_carlo

# Where the step times of a policy are from; it stands beside every result.
STEP_TIMES = {"artifact_bamboo_raw": "artifact", "bamboo": "calibrated"}
# What is estimated, and how it is called in `summary.csv`.
FIGURES = {
    "throughput": "throughput_samples_per_sec",
    "cost_usd_per_hour": "cost_usd_per_hour",
    "value": "value",
    "fatal_failures": "fatal_failures",
    "preemptions": "preemptions",
    "hours": "hours",
}


@dataclasses.dataclass(frozen=True)
class Task:
  """Runs of one policy at one probability; the seeds are consecutive."""

  policy: str
  model: artifact.Model
  latencies: artifact.Latencies
  probability: float
  seeds: range


def run_task(task: Task) -> tuple[list[artifact.Outcome], float]:
  """Returns the outcome of each seed, and the processor time in seconds."""
  start = time.process_time()
  outcomes = [
      artifact.simulate(
          task.model,
          preemption_probability=task.probability,
          seed=seed,
          latencies=task.latencies,
      )
      for seed in task.seeds
  ]
  return outcomes, time.process_time() - start


def estimate(
    tasks: Sequence[Task],
) -> dict[tuple[str, float], dict[str, monte_carlo.Estimate]]:
  """Returns estimates by policy and probability, then by figure.

  Runs on all cores, shows progress, and prints what an event costs.
  """
  num_runs = sum(len(task.seeds) for task in tasks)
  done = list(itertools.accumulate(len(task.seeds) for task in tasks))
  with progress_lib.Progress(num_steps=num_runs) as bar:

    def show(num_tasks: int) -> None:
      task = tasks[num_tasks - 1]
      shown = {"policy": task.policy, "probability": task.probability}
      bar.show_step(done[num_tasks - 1], shown)

    results = monte_carlo.run_all(run_task, tasks, on_done=show)
  outcomes = {(task.policy, task.probability): [] for task in tasks}
  for task, (found, _) in zip(tasks, results, strict=True):
    outcomes[task.policy, task.probability] += found
  cpu_secs = sum(secs for _, secs in results)
  num_events = sum(o.num_events for found in outcomes.values() for o in found)
  print(
      f"runs={num_runs} events={num_events} cpu_secs={cpu_secs:.1f} "
      f"cpu_us_per_event={1e6 * cpu_secs / num_events:.1f}"
  )
  return {
      key: {
          name: monte_carlo.estimate([getattr(o, name) for o in found])
          for name in FIGURES
      }
      for key, found in outcomes.items()
  }
