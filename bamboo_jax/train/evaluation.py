"""Evaluation by all members together, between two steps."""

from bamboo_jax.runtime.phases import evaluate
from bamboo_jax.train.members import cohort as cohort_lib
from bamboo_jax.train.setup import build
from bamboo_jax.train.setup import job as job_lib


def run(
    job: job_lib.Job, cohort: cohort_lib.Cohort, *, step: int
) -> dict[str, float]:
  """Returns mean "loss" and perhaps "accuracy", after `step` steps.

  All members must call it. A loss of a node cancels it unless all members had
  done their part; training does not depend on it. Raises as a transfer does.
  """
  batches = job.task.batches
  losses = evaluate.evaluate(
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
  return evaluate.average(
      {int(i): loss for words in said.values() for i, loss in words.items()}
  )
