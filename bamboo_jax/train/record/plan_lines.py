"""The plan of a run in words, as its start shows it."""

from collections.abc import Iterable, Iterator
from typing import Any

from bamboo_jax.train.setup import job as job_lib


def describe(job: job_lib.Job) -> Iterator[str]:
  """Yields the plan, and warnings of shares that are too coarse."""
  plan = job.plan
  if job.config.pipeline.layout != "depth":
    yield from _describe_uneven(job)
  else:
    yield (
        f"plan: {plan.num_pipelines} pipelines x {plan.num_stages} stages, "
        f"{plan.batch.num_microbatches} microbatches of "
        f"{plan.batch.microbatch_size} samples each, "
        f"layers {plan.partition.bounds}, predicted bubble "
        f"{100 * plan.timeline.mean_bubble:.1f} %"
    )
  if (enough := job.find_enough_to_deal()) > plan.batch.num_shares:
    yield (
        f"warning: config.pipeline.num_shares={plan.batch.num_shares} is too "
        "coarse to deal what a dead node owes over all "
        f"{job.num_holders} that hold it; {enough} would do."
    )


def _describe_uneven(job: job_lib.Job) -> Iterator[str]:
  layout, batch = job.first_layout, job.plan.batch
  parts = [p.partition for p in layout.pipelines]
  yield (
      f"plan: {_join(p.num_stages for p in parts)} stages, "
      f"{_join(map(len, layout.shares))} shares of "
      f"{batch.microbatches_per_share} microbatches, layers "
      f"{_join(p.bounds for p in parts)}"
  )
  if (enough := job.find_enough_shares()) > batch.num_shares:
    yield (
        f"warning: config.pipeline.num_shares={batch.num_shares} is too "
        "coarse for these pipelines to finish together; "
        f"{enough} would do."
    )


def _join(parts: Iterable[Any]) -> str:
  return " + ".join(map(str, parts))
