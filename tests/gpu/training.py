"""Runs that train, each in a process of its own."""

import json
import os
import sys

from tests.gpu import child


def train(workdir, *arguments, timeout_secs, module="launch.train"):
  """Returns the summary of a run, and what went wrong or None."""
  problem = child.run_command(
      [
          *(sys.executable, "-m", module, "--config=configs/sweep_faults.py"),
          *("--config.metrics.plots=False", "--config.checkpoint.every_steps=0"),
          *arguments,
          f"--workdir={workdir}",
      ],
      xla_flags=os.environ.get("XLA_FLAGS", ""),
      timeout_secs=timeout_secs,
  )
  if problem:
    return {}, problem
  return json.loads((workdir / "summary.json").read_text()), None
