"""Whether three layouts of the same batch give the same bits."""

import pytest

from tests.gpu import child, training

# Pipelines and stages; each has 4 shares of 2 microbatches.
_LAYOUTS = ((1, 4), (2, 2), (4, 1))


def judge(hashes):
  """Returns what the hashes of the layouts say; a dict by layout."""
  same = len(set(hashes.values())) == 1
  problems = [] if same else [f"layouts give other bits: {hashes}"]
  return child.Found({"same_bits": same}, problems)


@pytest.mark.gpu
def test_layouts(report, note, secs_left, tmp_path):
  hashes, problems = {}, []
  for pipelines, stages in _LAYOUTS:
    name = f"{pipelines}x{stages}"
    summary, problem = training.train(
        tmp_path / name,
        "--config.num_steps=4",
        "--config.model.options.num_blocks=4",
        f"--config.pipeline.num_pipelines={pipelines}",
        f"--config.pipeline.num_stages={stages}",
        f"--config.pipeline.num_microbatches={8 // pipelines}",
        "--config.pipeline.num_shares=4",
        "--config.redundancy.mode=none",
        timeout_secs=secs_left(),
    )
    if problem:
      problems.append(f"{name}: {problem}")
    else:
      hashes[name] = summary["state_sha256"]
      note(**{f"{name}.state_sha256": hashes[name]})
  if problems:
    report(child.Found(problems=problems))
  report(judge(hashes))


@pytest.mark.parametrize(("hashes", "count"), [("aaa", 0), ("aab", 1)])
def test_judge(hashes, count):
  assert len(judge(dict(enumerate(hashes))).problems) == count
