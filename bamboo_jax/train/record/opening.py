"""Messages and files at the start of a run."""

from collections.abc import Iterable
import json
from typing import Any

from bamboo_jax import base
from bamboo_jax.train.record import workdir as workdir_lib
from bamboo_jax.train.setup import job as job_lib


def write_facts(job: job_lib.Job, workdir: workdir_lib.Workdir) -> None:
  """Writes the config, and which files the data come from, into a workdir."""
  text = json.dumps(job.config.to_json(), indent=2)
  base.write_atomically(workdir.config, text + "\n")
  manifest = job.task.batches.source.manifest
  if manifest is not None:
    base.write_atomically(workdir.data, manifest.to_json())


def describe_plan(job: job_lib.Job) -> str:
  """Returns the line on the plan of a step."""
  plan, batch = job.plan, job.plan.batch
  if job.config.pipeline.layout == "depth":
    return (
        f"plan: {plan.num_pipelines} pipelines x {plan.num_stages} stages, "
        f"layers {plan.partition.bounds}, predicted bubble "
        f"{100 * plan.timeline.mean_bubble:.1f} %"
    )
  layout = job.first_layout
  parts = [p.partition for p in layout.pipelines]
  return (
      f"plan: {_join(p.num_stages for p in parts)} stages, "
      f"{_join(map(len, layout.shares))} shares of "
      f"{batch.microbatches_per_share} microbatches, layers "
      f"{_join(p.bounds for p in parts)}"
  )


def find_warnings(job: job_lib.Job) -> list[str]:
  """Returns warnings on likely mistakes in the config, a sentence each."""
  num_shares = job.plan.batch.num_shares
  found = job.task.schedule.find_warnings(job.config.num_steps)
  if job.config.pipeline.layout != "depth":
    if (enough := job.find_enough_shares()) > num_shares:
      found.append(
          f"config.pipeline.num_shares={num_shares} is too coarse for these "
          f"pipelines to finish together; {enough} would do."
      )
  return found


def _join(parts: Iterable[Any]) -> str:
  return " + ".join(map(str, parts))
