"""A cluster of workers that share one device, some of which are killed."""

import statistics

import pytest

from tests.gpu import child, training

_CONFIG = (
    "--config.model.options.num_blocks=4",
    "--config.pipeline.num_pipelines=2",
    "--config.pipeline.num_microbatches=4",
)


def judge(killed, whole, *, num_kills):
  """Returns what the summaries of a run with kills and one without tell."""
  secs = [recovery["kill_to_first_instruction_secs"] for recovery in killed["recoveries"]]
  values = {
      "count": len(secs),
      "median_secs": statistics.median(secs) if secs else None,
      "most_secs": max(secs, default=None),
      "same_bits": killed["state_sha256"] == whole["state_sha256"],
  }
  problems = []
  if len(secs) != num_kills:
    problems.append(f"{len(secs)} recoveries after {num_kills} kills")
  if not values["same_bits"]:
    problems.append("other bits than without kills")
  return child.Found(values, problems)


@pytest.mark.gpu
def test_cluster(settings, report, secs_left, tmp_path):
  num_kills, num_workers = settings.num_kills, settings.num_workers
  sizes = (
      f"--config.num_steps={4 * num_kills + 2}",
      f"--config.pipeline.num_stages={num_workers // 2}",
  )
  kills = f"--random_kills={num_kills}"
  fraction = f"--device_memory_fraction={0.8 / num_workers}"
  given = {"whole": ("launch.train",), "killed": ("launch.cluster", kills, fraction)}
  summaries = []
  for name, (module, *arguments) in given.items():
    summary, problem = training.train(
        *(tmp_path / name, *_CONFIG, *sizes, *arguments), module=module, timeout_secs=secs_left()
    )
    if problem:
      report(child.Found(problems=[f"{name}: {problem}"]))
    summaries.append(summary)
  whole, killed = summaries
  report(judge(killed, whole, num_kills=num_kills))


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
