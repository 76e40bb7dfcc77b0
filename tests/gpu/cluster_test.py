"""A cluster of four workers that share one device, some of which are killed."""

import json
import os
import pathlib
import statistics
import sys

import pytest

from tests.gpu import child

_CONFIG = (
    "--config=configs/sweep_faults.py",
    "--config.pipeline.num_pipelines=2",
    "--config.pipeline.num_stages=2",
    "--config.pipeline.num_microbatches=4",
    "--config.checkpoint.every_steps=0",
    "--config.metrics.plots=False",
)


def judge(killed, whole, *, num_kills):
  """Returns what the summaries of a run with kills and one without tell."""
  secs = [
      recovery["kill_to_first_instruction_secs"]
      for recovery in killed["recoveries"]
  ]
  values = {
      "kills": len(secs),
      "median_secs": statistics.median(secs) if secs else None,
      "most_secs": max(secs, default=None),
      "same_bits": killed["state_sha256"] == whole["state_sha256"],
  }
  problems = []
  if len(secs) != num_kills:
    problems.append(f"{len(secs)} recoveries after {num_kills} kills")
  if not values["same_bits"]:
    problems.append("other bits than without kills")
  lines = [f"{key}: {value}" for key, value in values.items()]
  return child.Found(lines, values, problems)


@pytest.mark.gpu
def test_cluster(settings, report, request, tmp_path):
  num_kills = settings.num_kills
  steps = f"--config.num_steps={4 * num_kills + 2}"
  kills = f"--random_kills={num_kills}"
  given = {
      "whole": ("launch.train",),
      "killed": ("launch.cluster", kills, "--device_memory_fraction=0.2"),
  }
  for name, (module, *arguments) in given.items():
    problem = child.run_command(
        [
            *(sys.executable, "-m", module, *_CONFIG, steps, *arguments),
            f"--workdir={tmp_path / name}",
        ],
        xla_flags=os.environ.get("XLA_FLAGS", ""),
        timeout_secs=request.config.getoption("--timeout_secs"),
    )
    if problem:
      report(child.Found(problems=[f"{name}: {problem}"]))
  read = lambda name: json.loads(
      pathlib.Path(tmp_path, name, "summary.json").read_text()
  )
  report(judge(read("killed"), read("whole"), num_kills=num_kills))


@pytest.mark.parametrize(
    ("secs", "bits", "problems"),
    [
        ([0.2, 0.4, 0.9], "a", []),
        ([0.2, 0.4], "a", ["2 recoveries after 3 kills"]),
        ([0.2, 0.4, 0.9], "b", ["other bits than without kills"]),
    ],
)
def test_judge(secs, bits, problems):
  recoveries = [{"kill_to_first_instruction_secs": s} for s in secs]
  killed = {"state_sha256": bits, "recoveries": recoveries}
  found = judge(killed, {"state_sha256": "a"}, num_kills=3)
  assert list(found.problems) == problems
  assert found.values["median_secs"] == statistics.median(secs)
