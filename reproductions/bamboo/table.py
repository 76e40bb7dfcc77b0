"""Bamboo's table of simulated preemptions, by the rules of its artifact."""

from collections.abc import Iterator, Sequence
import csv
import dataclasses
import math
import pathlib
import time

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
# The estimated figures by column of `summary.csv`; those of published tables first.
_FIGURES = {
    "throughput_samples_per_sec": "throughput",
    **{name: name for name in ("cost_usd_per_hour", "value", "fatal_failures")},
    **{name: name for name in ("preemptions", "hours")},
}
_P = "preemption_probability"
_CHUNKS = 4  # Tasks per policy and probability.
PROBABILITIES = (0.01, 0.05, 0.10, 0.25, 0.50)  # Per hour.
_BERT = "BERT"
_ON_DEMAND_NODES = 32
_REMARKS = (
    "The step times of policy bamboo are calibrated: they were fitted to the "
    "published table after seeing it. Those of artifact_bamboo_raw are the "
    "artifact's own, and are compared with the artifact's results.",
    "On demand, 264 samples in 2.51 s on 32 nodes (4 pipelines of 8) give the "
    "published value; on the 20 nodes that the artifact has, they do not.",
)


@dataclasses.dataclass(frozen=True)
class Task:
  """Runs of one policy at one probability; the seeds are consecutive."""

  policy: str
  model: artifact.Model
  probability: float
  seeds: range


def run(
    model: str | None = None,
    *,
    workdir: pathlib.Path,
    policies: Sequence[str] = tuple(_STEP_TIMES),
    probabilities: Sequence[float] = PROBABILITIES,
    num_seeds: int = 1000,
    formats: Sequence[str] = ("png",),
    where: sweep.Where = sweep.HERE,
) -> None:
  """Writes `summary.csv` and `report.html`; prints the published figures.

  Args:
    model: Of `artifact.MODELS`; None: BERT, the only one with calibrated step times.
    workdir: Where the files go.
    policies: With the artifact's step times, or with calibrated ones.
    probabilities: Of a loss, for each node and hour.
    num_seeds: Runs of each policy with each probability.
    formats: Of figures.
    where: Where runs are played.
  """
  model = model or _BERT
  if model not in artifact.MODELS:
    raise ValueError(base.suggest(model, artifact.MODELS, what="model"))
  if model != _BERT:
    policies = [policy for policy in policies if _STEP_TIMES[policy] == "artifact"]
  found = artifact.MODELS[model]
  outcomes = play([*_make_tasks(found, policies, probabilities, num_seeds)], where)
  rows = [_row(*key, some, num_seeds) for key, some in outcomes.items()]
  on_demand = {"on_demand": _ON_DEMAND_NODES, "artifact_on_demand": None}
  rows += [
      _row(policy, None, [artifact.on_demand(found, num_nodes=number)], None)
      for policy, number in on_demand.items()
  ]
  lines = {
      f"{policy} ({_STEP_TIMES[policy]} step times)": [
          output.point(row[_P], row, "value") for row in rows if row["policy"] == policy
      ]
      for policy in policies
  }
  note = output.explain_bars([num_seeds])
  report = contents.make(
      f"{model} on preemptible nodes, by the rules of Bamboo's artifact",
      remarks=_REMARKS if model == _BERT else _REMARKS[:1],
      series={"value": contents.series("preemption probability per hour", lines, note=note)},
      tables=_compare(rows) if model == _BERT else {},
  )
  publish_lib.publish(workdir, rows, report, formats=formats)


def _make_tasks(
    model: artifact.Model, policies: Sequence[str], probabilities: Sequence[float], num_seeds: int
) -> Iterator[Task]:
  """Yields the runs, all seeds of a setting one after the other."""
  calibrated = dataclasses.replace(model, step_ms=artifact.CALIBRATED_BERT)
  size = math.ceil(num_seeds / _CHUNKS)
  for policy in policies:
    chosen = calibrated if _STEP_TIMES[policy] == "calibrated" else model
    for probability in probabilities:
      for start in range(0, num_seeds, size):
        yield Task(policy, chosen, probability, range(start, min(start + size, num_seeds)))


def _row(
    policy: str,
    probability: float | None,
    outcomes: Sequence[artifact.Outcome],
    num_seeds: int | None,
) -> output.Row:
  row = {
      "policy": policy,
      "step_times": _STEP_TIMES.get(policy, "artifact"),
      _P: probability,
      "num_seeds": num_seeds,
  }
  return row | output.estimates(
      {column: [getattr(one, name) for one in outcomes] for column, name in _FIGURES.items()}
  )


def _compare(rows: Sequence[output.Row]) -> dict[str, contents.Value]:
  theirs = read_theirs()
  references = {
      "artifact_bamboo_raw": ("the artifact, as we ran it", "artifact"),
      "bamboo": ("NSDI'23 talk", "published"),
  }
  tables = {}
  for policy, (source, label) in references.items():
    step_times = _STEP_TIMES[policy]
    lines = [
        (f"{name}, p = {row[_P]:g}", theirs.get((step_times, name, row[_P])), [row[column]], "")
        for column, name in [*_FIGURES.items()][:3]
        for row in rows
        if row["policy"] == policy
    ]
    if policy == "bamboo":
      value = theirs["artifact", "on_demand_value", None]
      lines += [
          (f"value, {row['policy']}", value, [row["value"]], "") for row in rows if row[_P] is None
      ]
    if lines:
      tables[policy] = contents.compare(
          f"{policy} ({step_times} step times)",
          lines,
          columns=[f"{step_times} step times"],
          source=source,
          label=label,
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
      artifact.simulate(task.model, preemption_probability=task.probability, seed=seed)
      for seed in task.seeds
  ]
  return outcomes, time.process_time() - start


def play(
    tasks: Sequence[Task], where: sweep.Where
) -> dict[tuple[str, float], list[artifact.Outcome]]:
  """Returns outcomes by policy and probability.

  Shows progress, and prints the cost of an event. Raises as `sweep.run`.
  """
  results = sweep.run(
      run_task,
      tasks,
      where,
      num_runs=lambda task: len(task.seeds),
      describe=lambda t: {"policy": t.policy, "probability": t.probability},
  )
  outcomes, cpu_secs = {(task.policy, task.probability): [] for task in tasks}, 0.0
  for task, (found, secs) in zip(tasks, results, strict=True):
    outcomes[task.policy, task.probability] += found
    cpu_secs += secs
  num_events = sum(o.num_events for found in outcomes.values() for o in found)
  print(
      f"runs={sum(map(len, outcomes.values()))} events={num_events} cpu_secs={cpu_secs:.1f} "
      f"cpu_us_per_event={1e6 * cpu_secs / num_events:.1f}"
  )
  return outcomes
