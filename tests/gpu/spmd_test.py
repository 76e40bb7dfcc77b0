"""Whether a step as one program over several GPUs has the bits of rows."""

import jax
import pytest

from tests.gpu import child, training


def check_count(settings):
  """Counts the devices of this process."""
  del settings
  return child.Found(values={"devices": jax.local_device_count()})


@pytest.mark.gpu
def test_spmd(report, run_alone, secs_left, settings, tmp_path):
  found = run_alone(check_count)
  if found.problems:
    report(found)
  num_devices = found.values["devices"]
  if num_devices < 2 and settings.needs_gpu:
    report(child.Found({"devices": num_devices, "skipped": "needs at least 2 GPUs"}))
    return
  summaries, problems = {}, []
  for executor in ("rows", "spmd"):
    summaries[executor], problem = training.train(
        tmp_path / executor,
        "--config.num_steps=4",
        "--config.model.options.num_blocks=2",
        "--config.pipeline.num_pipelines=1",
        "--config.pipeline.num_stages=2",
        f"--config.pipeline.executor={executor}",
        timeout_secs=secs_left(),
    )
    if problem:
      problems.append(f"{executor}: {problem}")
  hashes = [s.get("state_sha256") for s in summaries.values()]
  report(child.Found({"same_bits": len({*hashes}) == 1}, problems))
