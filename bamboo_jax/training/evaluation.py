"""Evaluation by all members together, between two steps.

Forward passes without dropout: pipelines take microbatches in turn, activations
take the links of training. All nodes run by microbatch, then by stage, so there
is no deadlock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import time

import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.training import failures
from bamboo_jax.training.setup import job as job_lib

_AGREE_SECS = 1.0  # Between two agreements to go on.


@dataclasses.dataclass(frozen=True)
class EvalPart:
  """A member's results of some microbatches, `layer.Loss.stack` by number.

  Attributes:
    secs: How long they took.
    stops: Whether it was asked to end the run.
    ends: Whether the evaluation must end: so; or a node must hand its stages over
      after a notice; or there is an error in the data.
  """

  losses: Mapping[int, list[float]]
  secs: float
  stops: bool
  ends: bool


def run(
    job: job_lib.Job, data: failures.SafeData, given: job_lib.Environment, *, step: base.StepId
) -> tuple[dict[str, float] | None, bool]:
  """Returns the mean "loss" in nats and those of the metrics of the model, by name.

  None instead if it has ended early; and whether the run stops.

  Blocks until all members have called it after `step` steps. About once a
  second they agree to go on: a request to end the run, a notice or an error in
  the data ends it. The death of a node cancels it with the exception of a
  transfer or of `Cohort.gather`; training does not depend on the result.
  """
  cohort, batches = given.cohort, job.task.batches
  weights = batches.eval_weights(job.config.evaluate.num_microbatches)
  losses: dict[int, list[float]] = {}
  first, count = 0, batches.num_microbatches
  while first < len(weights):
    start_secs = time.perf_counter()
    numbers = range(first, min(first + count, len(weights)))
    own = evaluate(
        job.engine,
        (
            (i, data.microbatch(*divmod(i, batches.num_microbatches), is_heldout=True))
            for i in numbers
        ),
        check=cohort.check,
    )
    mine = EvalPart(
        {i: loss.tolist() for i, loss in own.items()},
        secs=time.perf_counter() - start_secs,
        stops=(stops := given.stops()),
        ends=stops
        or bool(data.failures.first.text)
        or not {*cohort.newest.leaving} <= {*cohort.view.leaving},
    )
    said = [*cohort.gather(f"eval {step} {first}", mine).values()]
    losses |= {i: loss for part in said for i, loss in part.losses.items()}
    first += len(numbers)
    if any(part.ends for part in said):
      return None, any(part.stops for part in said)
    rate = len(numbers) / max(part.secs for part in said)
    count = max(1, round(rate * _AGREE_SECS))
  found = {i: weights[i] * np.array(loss) for i, loss in losses.items()}
  whole = job.task.whole
  names = whole.model.metrics(whole.batch, train=False)
  return average(found, names), False


def evaluate(
    engine: engine_lib.Engine,
    microbatches: Iterable[tuple[int, Mapping[str, np.ndarray]]],
    *,
    check: Callable[[], None] = lambda: None,
) -> dict[int, np.ndarray]:
  """Returns `layer.Loss.stack` by microbatch, float64; blocks.

  Only of microbatches whose last stage is local. `microbatches`, with their
  numbers, must be the same in all processes; `check` is called before each
  pass, and may raise.
  """
  nodes, losses = engine.nodes, {}
  channel = lambda row, stage: channel_lib.Channel("activation", row[stage : stage + 2], (stage,))
  for index, batch in microbatches:
    row, value = engine.owners[index % len(engine.owners)], None
    for stage, node in base.by_stage(row):
      if node not in nodes:
        continue
      check()
      if stage and row[stage - 1] not in nodes:
        like = engine.specs[stage].inputs
        value = engine.links.receive(channel(row, stage - 1), like)
      value = nodes[node].evaluate(stage, value, batch)
      if stage + 1 < len(row) and row[stage + 1] not in nodes:
        engine.links.send(channel(row, stage), value)
    if row[-1] in nodes:
      losses[index] = value
  return {i: np.asarray(loss, np.float64) for i, loss in losses.items()}


def average(losses: Mapping[int, np.ndarray], metrics: Sequence[str] = ()) -> dict[str, float]:
  """Returns the means over tokens of "loss" and of `metrics`, by name."""
  sums = np.sum([losses[i] for i in sorted(losses)], axis=0)
  means = zip(("loss", *metrics), np.delete(sums, 1) / sums[1], strict=True)
  return {name: float(mean) for name, mean in means}
