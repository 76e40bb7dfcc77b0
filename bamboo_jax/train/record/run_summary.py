"""The summary of a run, for comparisons with others."""

from collections.abc import Mapping, Sequence
import statistics
from typing import Any

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.checkpoint import digest
from bamboo_jax.metrics import jsonl, summary as summary_lib
from bamboo_jax.recovery import durations
from bamboo_jax.train.record import workdir as workdir_lib
from bamboo_jax.train.setup import job as job_lib

SKIPPED = "skipped"  # Event of a step that did not change the state.


def make_summary(
    job: job_lib.Job,
    digests: digest.Digests,
    *,
    steps_done: int,
    started_at: int,
    lines: Sequence[jsonl.Line],
    since: Sequence[jsonl.Line],
    recoveries: Sequence[Mapping[str, Any]],
    account: account_lib.Account,
) -> summary_lib.Summary:
  """Returns the summary of a run, for `summary.json`.

  Args:
    steps_done: Number of steps that the state has seen.
    started_at: Number of steps done before the run was resumed.
    lines: Lines of the log; a loss that is not a number is null.
    since: The lines written since the run was resumed.
    recoveries: Recoveries since then, as in the log.
  """
  plan, order = job.plan, job.task.whole.names
  samples_seen = steps_done * plan.batch.batch_size
  losses = [line.get("loss") for line in lines if "event" not in line]
  skipped = {l["step"] for l in lines if l.get("event") == SKIPPED}
  steps = [line for line in since if "event" not in line]
  bubbles = [l["bubble_pct"] / 100 for l in steps if "bubble_pct" in l]
  reports = zip(recoveries, durations.report(recoveries, {}), strict=True)
  evaluations = [
      {k: v for k, v in line.items() if k != "event"}
      for line in since
      if line.get("event") == "eval"
  ]
  return summary_lib.Summary(
      steps=steps_done,
      final_loss=losses[-1] if losses else None,
      params_sha256=digest.params_sha256(digests, order),
      state_sha256=digest.state_sha256(digests, order, samples_seen=samples_seen),
      samples_seen=samples_seen,
      resumed_from_step=started_at,
      median_step_secs=summary_lib.median_but_first([line["step_ms"] / 1e3 for line in steps]),
      bubble_fraction=summary_lib.median_but_first(bubbles),
      more={
          "skipped_steps": len(skipped),
          "epochs": job.task.batches.source.epochs(samples_seen),
          "samples_dropped": sum(l.get("samples_dropped", 0) for l in steps),
          "evaluation": evaluations[-1] if evaluations else None,
          "predicted_step_secs": plan.step_time.total_ms / 1e3,
          "predicted_bubble_fraction": plan.timeline.mean_bubble,
          "redundancy": _mean_redundancy(job.config.redundancy.mode, steps),
          "costs_measured": plan.profile.measured,
          "partition": list(plan.partition.bounds),
          "recoveries": [{**r, **more} for r, more in reports],
          "cost": account.as_dict(),
      },
  )


def _mean_redundancy(mode: str, steps: Sequence[jsonl.Line]) -> dict[str, Any] | None:
  """Returns the means over steps that filled waits; None without any."""
  found = [line["redundant"] for line in steps if "redundant" in line]
  if not found:
    return None
  means = {k: statistics.fmean(f[k] for f in found) for k in found[0]}
  return {"mode": mode, "steps": len(found), **means}


def find_recoveries(since: Sequence[jsonl.Line]) -> list[dict[str, Any]]:
  """Returns the recoveries in lines of a log, one per view."""
  found = [line for line in since if line.get("event") == "recovery"]
  by_view = {line["view"]: line for line in found}
  return [{k: v for k, v in line.items() if k != "event"} for line in by_view.values()]


def is_written(workdir: workdir_lib.Workdir, summary: summary_lib.Summary) -> bool:
  """Returns whether `workdir` has a summary of the same state."""
  try:
    former = summary_lib.read_summary(workdir.summary)
  except (OSError, ValueError):
    return False
  return former.state_sha256 == summary.state_sha256
