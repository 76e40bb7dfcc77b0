"""Evaluation by all members together, between two steps.

Forward passes without dropout: pipelines take microbatches in turn, activations
take the links of training. All nodes run by microbatch, then by stage, so there
is no deadlock.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.train.members import cohort as cohort_lib
from bamboo_jax.train.setup import build
from bamboo_jax.train.setup import job as job_lib


def run(
    job: job_lib.Job, cohort: cohort_lib.Cohort, *, step: base.StepId
) -> dict[str, float]:
  """Returns the mean "loss" in nats, and "accuracy" if the model has one.

  Blocks until all members have called it after `step` steps. The death of a
  node cancels it with the exception of a transfer or of `Cohort.gather`;
  training does not depend on the result.
  """
  batches = job.task.batches
  losses = evaluate(
      job.engine,
      (
          batches.eval_microbatch(*divmod(i, batches.num_microbatches))
          for i in range(build.num_eval_microbatches(job.config, batches))
      ),
      check=cohort.check,
  )
  said = cohort.gather(
      f"eval {step}", {str(i): loss.tolist() for i, loss in losses.items()}
  )
  return average(
      {int(i): loss for words in said.values() for i, loss in words.items()}
  )


def evaluate(
    engine: engine_lib.Engine,
    microbatches: Iterable[Mapping[str, np.ndarray]],
    *,
    check: Callable[[], None] = lambda: None,
) -> dict[int, np.ndarray]:
  """Returns the fields of `layer.Loss` by microbatch, float64; blocks.

  Only of microbatches whose last stage is local. `microbatches` must be the
  same in all processes; `check` is called before each pass, and may raise.
  """
  nodes, losses = engine.nodes, {}
  find_link = lambda row, stage: engine.links.get(
      channel_lib.Channel("activation", (row[stage], row[stage + 1]), (stage,))
  )
  for index, batch in enumerate(microbatches):
    row, value = engine.owners[index % len(engine.owners)], None
    for stage, node in base.by_stage(row):
      if node not in nodes:
        continue
      check()
      if stage and row[stage - 1] not in nodes:
        value = find_link(row, stage - 1).receive()
      value = nodes[node].evaluate(stage, value, batch)
      if stage + 1 < len(row) and row[stage + 1] not in nodes:
        find_link(row, stage).send(value)
    if row[-1] in nodes:
      losses[index] = value
  return {i: np.asarray(loss, np.float64) for i, loss in losses.items()}


def average(losses: Mapping[int, np.ndarray]) -> dict[str, float]:
  """Returns the means of "loss" and, if known, "accuracy", over tokens."""
  sums = np.sum([losses[i] for i in sorted(losses)], axis=0)
  means = zip(("loss", "accuracy"), np.delete(sums, 1) / sums[1], strict=False)
  return {name: float(mean) for name, mean in means}
