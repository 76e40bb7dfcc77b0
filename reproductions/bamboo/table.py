"""Bamboo's table of simulated preemptions, by the rules of its artifact."""

from collections.abc import Iterator, Mapping, Sequence
import csv
import dataclasses
import math
import numbers
import pathlib
import time

import ml_collections

from bamboo_jax import base
from bamboo_jax.experiments import output, sweep
from bamboo_jax.report import contents
from bamboo_jax.reproductions import publish as publish_lib
from bamboo_jax.reproductions.bamboo import artifact

# What the artifact says with its own step times, and the published table beside calibrated ones;
# and ours of 10,000 seeds.
DIGITS = pathlib.Path(__file__).with_name("digits.csv")
# Origin of the step times of a policy, shown with every result.
_STEP_TIMES = {"artifact_bamboo_raw": "artifact", "bamboo": "calibrated"}
# The estimated figures.
_FIGURES = (
    *("throughput", "cost_usd_per_hour", "value", "fatal_failures"),
    *("preemptions", "hours"),
)
_CHUNKS = 4  # Tasks per policy and probability.
_REMARKS = (
    "The step times of policy bamboo are calibrated: they were fitted to the "
    "published table after seeing it. Those of artifact_bamboo_raw are the "
    "artifact's own, and are compared with the artifact's results.",
    "On demand, 264 samples in 2.51 s on 32 nodes (4 pipelines of 8) give the "
    "published value; on the 20 nodes that the artifact has, they do not.",
)


Estimates = Mapping[tuple[str, float], Mapping[str, output.Estimate]]


@dataclasses.dataclass(frozen=True)
class Task:
  """Runs of one policy at one probability; the seeds are consecutive."""

  policy: str
  model: artifact.Model
  latencies_ms: Mapping[str, int]
  probability: float
  seeds: range


def run(
    config: ml_collections.ConfigDict,
    *,
    workdir: pathlib.Path,
    trace: str | None,
    formats: Sequence[str] = ("png",),
    where: sweep.Where = sweep.HERE,
) -> None:
  """Writes `summary.csv` and `report.html`; prints the published figures."""
  if trace is not None:
    raise ValueError(
        "This experiment draws its preemptions, as the artifact does; leave "
        f"out --trace={trace}."
    )
  tasks = list(_make_tasks(config))
  estimates = estimate(tasks, where)
  model = tasks[0].model
  on_demand = {
      "on_demand": artifact.on_demand(model, num_nodes=config.on_demand_nodes),
      "artifact_on_demand": artifact.on_demand(model),
  }
  rows = [_row(*key, e, config.num_seeds) for key, e in estimates.items()]
  for policy, outcome in on_demand.items():
    rows.append(_row(policy, None, _estimate([outcome]), None))
  is_bert = config.model == "BERT"
  report = contents.make(
      f"{config.model} on preemptible nodes, by the rules of Bamboo's artifact",
      remarks=_REMARKS if is_bert else _REMARKS[:1],
      series={
          "value": contents.series(
              "preemption probability per hour",
              {
                  f"{policy} ({_STEP_TIMES[policy]} step times)": [
                      figures["value"].at(rate)
                      for (name, rate), figures in estimates.items()
                      if name == policy
                  ]
                  for policy in config.policies
              },
              note=output.explain_bars([config.num_seeds]),
          )
      },
      tables=_compare(estimates, on_demand) if is_bert else {},
  )
  publish_lib.publish(workdir, rows, report, formats=formats)


def _make_tasks(config: ml_collections.ConfigDict) -> Iterator[Task]:
  """Yields the runs, all seeds of a setting one after the other."""
  models = artifact.MODELS
  if config.model not in models:
    raise ValueError(base.suggest(config.model, models, what="model"))
  for name in ("num_seeds", "on_demand_nodes"):
    if config[name] < 1:
      raise ValueError(f"{name} must be from 1, got {config[name]}.")
  for name in ("policies", "preemption_probabilities"):
    if not config[name]:
      raise ValueError(f"{name} must have an entry, got {config[name]}.")
  for name, secs in config.latencies.items():
    if secs is not None and not 0 <= secs < math.inf:
      raise ValueError(f"latencies.{name} must be from 0, got {secs}.")
  for probability in config.preemption_probabilities:
    if not isinstance(probability, numbers.Real) or not 0 <= probability < 1:
      raise ValueError(
          "preemption_probabilities must be numbers from 0 to below 1, got " f"{probability!r}."
      )
  end_seed = config.first_seed + config.num_seeds
  for policy in config.policies:
    if policy not in _STEP_TIMES:
      raise ValueError(base.suggest(policy, _STEP_TIMES, what="policy"))
    model = models[config.model]
    if _STEP_TIMES[policy] == "calibrated":
      if config.model != "BERT":
        raise ValueError(
            "Step times are calibrated for BERT alone; omit policy "
            f"{policy!r} or model {config.model!r}."
        )
      model = dataclasses.replace(model, step_ms=artifact.CALIBRATED_BERT)
    if config.latencies.reconfigure_secs is not None:
      local_ms = round(1000 * config.latencies.reconfigure_secs)
      model = dataclasses.replace(model, local_ms=local_ms)
    latencies_ms = {
        "creation_ms": round(1000 * config.latencies.creation_secs),
        "global_ms": round(1000 * config.latencies.restart_secs),
    }
    for probability in config.preemption_probabilities:
      size = math.ceil(config.num_seeds / _CHUNKS)
      for start in range(config.first_seed, end_seed, size):
        seeds = range(start, min(start + size, end_seed))
        yield Task(policy, model, latencies_ms, probability, seeds)


def _row(
    policy: str,
    probability: float | None,
    estimates: Mapping[str, output.Estimate],
    num_seeds: int | None,
) -> output.Row:
  row = {
      "policy": policy,
      "step_times": _STEP_TIMES.get(policy, "artifact"),
      "preemption_probability": probability,
      "num_seeds": num_seeds,
  }
  for name in _FIGURES:
    column = "throughput_samples_per_sec" if name == "throughput" else name
    row[column] = float(estimates[name].mean)
    row[f"{column}_ci95"] = estimates[name].half_width
  return row


def _compare(
    estimates: Estimates, on_demand: Mapping[str, artifact.Outcome]
) -> dict[str, contents.Value]:
  theirs = read_theirs()
  references = {
      "artifact_bamboo_raw": ("the artifact, as we ran it", "artifact"),
      "bamboo": ("NSDI'23 talk", "published"),
  }
  tables = {}
  for policy, (source, label) in references.items():
    lines = [
        (
            f"{name}, p = {probability:g}",
            theirs.get((_STEP_TIMES[policy], name, probability)),
            [figures[name].mean],
            "",
        )
        for name in ("throughput", "cost_usd_per_hour", "value")
        for (found, probability), figures in estimates.items()
        if found == policy
    ]
    if policy == "bamboo":
      lines += [
          (f"value, {name}", theirs["artifact", "on_demand_value", None], [outcome.value], "")
          for name, outcome in on_demand.items()
      ]
    if lines:
      step_times = f"{_STEP_TIMES[policy]} step times"
      tables[policy] = contents.compare(
          f"{policy} ({step_times})", lines, columns=[step_times], source=source, label=label
      )
  return tables


def read_theirs() -> dict[tuple[str, str, float | None], float]:
  """Returns the figures of others by step times, figure and probability, None if on demand."""
  with DIGITS.open(encoding="utf-8", newline="") as file:
    return {
        (row["step_times"], row["figure"], float(row["p"]) if row["p"] else None): float(
            row["theirs"]
        )
        for row in csv.DictReader(file)
        if row["theirs"]
    }


def run_task(task: Task) -> tuple[list[artifact.Outcome], float]:
  """Returns the outcome of each seed, and the CPU time in seconds."""
  start = time.process_time()
  outcomes = [
      artifact.simulate(
          task.model, preemption_probability=task.probability, seed=seed, **task.latencies_ms
      )
      for seed in task.seeds
  ]
  return outcomes, time.process_time() - start


def estimate(tasks: Sequence[Task], where: sweep.Where = sweep.HERE) -> Estimates:
  """Returns estimates by policy and probability, then by figure.

  Shows progress, and prints the cost of an event. Raises as `sweep.run`.
  """
  num_runs = sum(len(task.seeds) for task in tasks)
  results = [
      *sweep.run(
          run_task,
          tasks,
          where,
          num_runs=lambda task: len(task.seeds),
          describe=lambda t: {"policy": t.policy, "probability": t.probability},
      )
  ]
  outcomes = {(task.policy, task.probability): [] for task in tasks}
  for task, (found, _) in zip(tasks, results, strict=True):
    outcomes[task.policy, task.probability] += found
  cpu_secs = sum(secs for _, secs in results)
  num_events = sum(o.num_events for found in outcomes.values() for o in found)
  print(
      f"runs={num_runs} events={num_events} cpu_secs={cpu_secs:.1f} "
      f"cpu_us_per_event={1e6 * cpu_secs / num_events:.1f}"
  )
  return {key: _estimate(found) for key, found in outcomes.items()}


def _estimate(outcomes: Sequence[artifact.Outcome]) -> dict[str, output.Estimate]:
  return {name: output.estimate([getattr(o, name) for o in outcomes]) for name in _FIGURES}
