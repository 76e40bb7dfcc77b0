"""Paced nodes only take their time; samples that are dropped are left out."""

import json

from absl.testing import parameterized
import numpy as np

from bamboo_jax.metrics import jsonl
from bamboo_jax.models import paced as paced_lib, zoo
from bamboo_jax.training import run
from configs import paced
from tests import folders


def make_config(size="2x2", *, ms=1.0, **changes):
  config = paced.get_config(size)
  config.model.options.forward_ms = ms
  config.model.options.backward_ms = 2 * ms
  config.model.options.num_blocks = 4
  config.pipeline.num_microbatches = 4
  config.pipeline.num_shares = 4
  config.num_steps = 3
  config.metrics.plots = False
  config.update_from_flattened_dict(changes)
  return config


class PacedTest(folders.FolderCase):

  def train(self, config, name="run", faults=""):
    """Returns summary and log of a run."""
    path = self.folder / f"{name}.csv"
    path.write_text(faults)
    workdir = self.folder / name
    run.train_and_evaluate(config, workdir=str(workdir), faults=str(path) if faults else None)
    summary = json.loads((workdir / "summary.json").read_text())
    return summary, jsonl.read_lines(workdir / "metrics.jsonl")

  # Seconds: 19 steps, four of them slow.
  def test_a_slow_node_is_named_and_leaves_the_bits(self):
    config = make_config(ms=4.0, num_steps=19)
    kept = []
    for name, faults in ("usual", ""), ("slow", "15,1/0,,slow:4:19\n"):
      summary, lines = self.train(config, name, faults)
      found = [line for line in lines if line.get("event") == "slow"]
      kept.append((summary["state_sha256"], found))
    (usual, named), (state, (line,)) = kept
    self.assertEqual((usual, named), (state, []))
    self.assertEqual((line["node"], line["step"]), ("n2", 18))
    self.assertAlmostEqual(line["factor"], 4.0)

  # Slow, as it is time that is tested: 3 steps of 0.6 s.
  def test_a_step_takes_as_long_as_planned(self):
    config = make_config(ms=20.0)
    summary, lines = self.train(config)
    # Two stages of 40 and 80 ms, four microbatches: 5 times 120 ms. What busy
    # cores cost comes on top.
    self.assertGreaterEqual(summary["median_step_secs"], 0.6)
    self.assertAlmostEqual(summary["predicted_step_secs"], 0.6, delta=0.05)
    last = [line for line in lines if "bubble_pct" in line][-1]
    self.assertBetween(last["bubble_pct"], 5.0, 99.9)  # Redundant passes fill the rest.

  def test_times_of_a_profile(self):
    path = self.folder / "profile.json"
    layers = [{"forward_ms": 2.0 * i, "backward_ms": 3.0} for i in range(3)]
    path.write_text(json.dumps({"layers": layers}))
    model = zoo.make_model("paced", profile=str(path), time_scale=2.0)
    want = [[0.0, 1.5], [1.0, 1.5], [2.0, 1.5]]
    self.assertEqual(model.fingerprint["times_ms"], want)
    again = zoo.make_model(**model.fingerprint)
    self.assertEqual(again.paces, model.paces)

  def test_jitter(self):
    model = zoo.make_model("paced", jitter=0.25)
    pace = model.paces["block_000"]
    times = [pace.vary(100.0, f"0 1F{m}") for m in range(400)]
    self.assertBetween(min(times), 75.0, 80.0)
    self.assertBetween(max(times), 120.0, 125.0)
    self.assertAlmostEqual(np.mean(times), 100.0, delta=3.0)
    self.assertEqual(pace.vary(100.0, "0 1F7"), times[7])  # In every process.
    self.assertEqual(zoo.make_model("paced").fingerprint, model.fingerprint)

  @parameterized.parameters(
      ({"num_blocks": 1}, "needs at least two layers"),
      ({"forward_ms": -1.0}, "at least 0, got"),
      ({"time_scale": 0.0}, "time_scale must be above 0, got 0.0"),
      ({"jitter": 1.0}, "jitter must be from 0 and below 1, got 1.0"),
      ({"width": 0}, "width must be at least 1, got 0"),
      ({"profile": __file__}, "is not a file of bamboo profile"),
  )
  def test_refuses(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      paced_lib.make_paced(**options)

  def test_after_a_drop_a_step_is_that_of_the_other_pipeline(self):
    config = make_config(num_steps=1)
    config.recovery.policy = "sample_dropping"
    summaries = []
    for num_pipelines, faults in ((2, "0,1/0,5,kill\n"), (1, "")):
      config.pipeline.num_pipelines = num_pipelines
      config.pipeline.num_shares = 2 * num_pipelines
      summaries.append(self.train(config, f"{num_pipelines}", faults)[0])
    dropped, alone = summaries
    self.assertEqual([r["rung"] for r in dropped["recoveries"]], ["drop"])
    self.assertEqual(dropped["params_sha256"], alone["params_sha256"])
    self.assertEqual(dropped["final_loss"], alone["final_loss"])
    self.assertEqual((dropped["samples_dropped"], alone["samples_dropped"]), (4, 0))
    self.assertEqual(dropped["cost"]["num_samples"], 4)
