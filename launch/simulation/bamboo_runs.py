"""Runs Bamboo's artifact with many seeds on all cores."""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import math
import numbers
import time

import ml_collections

from bamboo_jax import base
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

_CHUNKS = 4  # Tasks per policy and probability.


@dataclasses.dataclass(frozen=True)
class Task:
  """Runs of one policy at one probability; the seeds are consecutive."""

  policy: str
  model: artifact.Model
  latencies: artifact.Latencies
  probability: float
  seeds: range


def make_tasks(config: ml_collections.ConfigDict) -> Iterator[Task]:
  """Yields what is to be run, all seeds of a setting one after the other.

  Raises:
    ValueError: The config asks for what there is not.
  """
  models = artifact.MODELS
  if config.model not in models:
    raise ValueError(base.suggest(config.model, models, what="model"))
  if config.num_seeds < 1 or not config.preemption_probabilities:
    raise ValueError(
        "There must be a seed and a probability, got "
        f"num_seeds={config.num_seeds}, preemption_probabilities="
        f"{config.preemption_probabilities}."
    )
  for probability in config.preemption_probabilities:
    if not isinstance(probability, numbers.Real) or not 0 <= probability < 1:
      raise ValueError(
          "preemption_probabilities must be numbers from 0 to below 1, got "
          f"{probability!r}."
      )
  for policy in config.policies:
    if policy not in STEP_TIMES:
      raise ValueError(base.suggest(policy, STEP_TIMES, what="policy"))
    model = models[config.model]
    if STEP_TIMES[policy] == "calibrated":
      if config.model != "BERT":
        raise ValueError(
            "Step times are calibrated for BERT alone; leave out policy "
            f"{policy!r} or model {config.model!r}."
        )
      model = dataclasses.replace(model, step_ms=artifact.CALIBRATED_BERT)
    if config.latencies.reconfigure_secs is not None:
      local_ms = round(1000 * config.latencies.reconfigure_secs)
      model = dataclasses.replace(model, local_ms=local_ms)
    latencies = artifact.Latencies(
        creation_ms=round(1000 * config.latencies.creation_secs),
        global_ms=round(1000 * config.latencies.restart_secs),
    )
    for probability in config.preemption_probabilities:
      for seeds in _split(config.first_seed, config.num_seeds):
        yield Task(policy, model, latencies, probability, seeds)


def run_task(task: Task) -> tuple[list[artifact.Outcome], float]:
  """Returns what each seed gives, and the seconds of processor it took."""
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


def _split(first: int, count: int) -> Iterator[range]:
  size = math.ceil(count / _CHUNKS)
  for start in range(first, first + count, size):
    yield range(start, min(start + size, first + count))


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
