"""The benchmark of executors: predictions, rounds, and how results are put."""

import functools
import json
import pathlib
import tempfile
import types

from absl.testing import absltest

from bamboo_jax.benchmarks import executors, predict
from bamboo_jax.plan import planner
from bamboo_jax.train.setup import accept, build
from configs import sweep_faults
from tests import profiles


@functools.cache
def make_config():
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 2
  config.pipeline.num_pipelines = 1
  config.pipeline.num_stages = 2
  config.redundancy.mode = "eager"
  return accept.accept(config)


@functools.cache
def make_task():
  return build.make_task(make_config())


def make_plan():
  """Returns 2 stages of 2 blocks; only their layers take time, 1 + 2 ms."""
  layers = [
      profiles.make_layer(
          name, forward_ms=is_block * 1.0, backward_ms=is_block * 2.0, update_ms=1.0
      )
      for name in make_task().whole.names
      for is_block in [name.startswith("block")]
  ]
  return planner.make_plan(
      profiles.make_profile(layers),
      num_stages=2,
      num_pipelines=1,
      num_microbatches=4,
      microbatch_size=1,
      cuts=(1, 3, 5),
  )


@functools.cache
def make_pair():
  return executors.plan_pair(make_config(), make_task(), make_plan())


class FakeProcesses:
  """Programs that differ; a step of rows uses ten times the host's time."""

  def __init__(self):
    self.commands = []

  def ask(self, command):
    self.commands.append(command)
    return [1e-7, 2e-7]

  def run_step(self, variant):
    self.commands.append(variant)
    return {"cpu_ms": 10 if variant.startswith("rows") else 1}


class PredictTest(absltest.TestCase):

  def test_the_same_pipeline(self):
    size = types.SimpleNamespace(**executors.summarise_size(make_pair()))
    self.assertEqual((size.num_stages, size.num_microbatches), (2, 4))
    # A stage takes 2 ms forth and 4 ms back, so both take (4 + 1) * 6 ms.
    self.assertAlmostEqual(size.rows_ms, 30.0)
    self.assertAlmostEqual(size.program_ms, 30.0)
    self.assertAlmostEqual(size.program_redundant, 4 / 30)
    self.assertAlmostEqual(size.to_rows, 1.0)
    self.assertEqual((size.num_free, size.num_redundant), (6, 8))
    self.assertEqual(size.num_ticks, 6)
    self.assertLess(size.filled_bubble, size.program_bubble)

  def test_lockstep_costs_little_in_longer_pipelines(self):
    for num_stages in (4, 16):
      plan = predict.lengthen(make_plan(), num_stages, is_even=True)
      pair = executors.plan_pair(make_config(), make_task(), plan)
      size = types.SimpleNamespace(**executors.summarise_size(pair))
      self.assertLessEqual(size.to_rows, 1.05)
      if num_stages == 4:
        self.assertEqual(plan.partition.bounds, (0, 3, 5, 7, 10))
        self.assertEqual((size.num_stages, size.num_microbatches), (4, 8))
        self.assertEqual((size.num_free, size.num_redundant), (31, 32))
        self.assertLessEqual(size.program_redundant, 0.05)

  def test_step(self):
    def step_ms(executor, mode):
      return executors.predict_step_ms(make_pair(), f"{executor}/{mode}", refresh_ms=0.5)

    # Updates of 3 layers, and with replicas of those of the other stage too.
    self.assertAlmostEqual(step_ms("rows", "none"), 30.0 + 3.0)
    self.assertAlmostEqual(step_ms("rows", "lazy"), 30.0 + 0.5 + 6.0)
    self.assertAlmostEqual(step_ms("spmd", "none"), 30.0 + 3.0)
    self.assertAlmostEqual(step_ms("spmd", "eager"), 34.0 + 0.5 + 6.0)


class MeasureTest(absltest.TestCase):

  def test_variants_take_turns_on_the_same_batches(self):
    ours = FakeProcesses()
    steps, difference = executors.run_rounds(ours, num_rounds=3)
    self.assertEqual({len(own) for own in steps.values()}, {3})
    cpu_ms = {variant: own[0]["cpu_ms"] for variant, own in steps.items()}
    self.assertEqual(list(cpu_ms.values()), [10] * 3 + [1] * 3)
    self.assertEqual(difference, 2e-7)
    ours.commands.remove("difference")
    for k in range(8):
      feed, *variants = ours.commands[7 * k : 7 * k + 7]
      self.assertEqual(feed, f"feed {k}")
      self.assertCountEqual(variants, executors.VARIANTS)


class ReportTest(absltest.TestCase):

  def test_tables_and_files(self):
    steps = {
        variant: [
            dict(
                step_ms=(10.0 if variant.startswith("rows") else 12.0) + k,
                cpu_ms=5.0,
                host_bytes=2**20,
            )
            for k in range(3)
        ]
        for variant in executors.VARIANTS
    }
    built = dict(compile_secs=1.5, device_bytes=2**21, host_bytes=3 * 2**20)
    results = executors.summarise(
        steps, dict.fromkeys(executors.VARIANTS, built), dict.fromkeys(executors.VARIANTS, 9.0)
    )
    pair = make_pair()
    report = {
        "partition": (0, 3, 6),
        "difference": 1e-7,
        "results": [*results],
        "sizes": [executors.summarise_size(pair)],
    }
    text = executors.render(report)
    self.assertRegex(text, r"rows/none +11\.0 +9\.0 +5\.0 +1\.5 +2\.0 +3\.0")
    self.assertRegex(text, r"spmd/eager +1\.182 \[1\.167, 1\.200\] .* 1\.000 \[1\.000,")
    self.assertRegex(text, r"(?m)^2 +4 +30\.0 +\S+ +30\.0 +13\.3% +1\.000")
    out = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    executors.write(report, steps, pair, out)
    self.assertCountEqual(
        [path.name for path in out.iterdir()],
        ["report.json", "steps.csv", "grid_rows.png", "grid_spmd.png"],
    )
    lines = (out / "steps.csv").read_text().splitlines()
    self.assertEqual(lines[0], "round,variant,step_ms,cpu_ms,host_bytes")
    self.assertEqual(lines[1], "0,rows/none,10.0,5.0,1048576")
    self.assertLen(json.loads((out / "report.json").read_text())["sizes"], 1)

  def test_grids(self):
    timelines = make_pair().timelines
    self.assertEqual(list(timelines), ["rows", "spmd"])
    self.assertAlmostEqual(timelines["spmd"].span_ms, 34.0)
    for timeline in timelines.values():
      ops = {slot.instruction.op.value for slot in timeline.slots}
      self.assertIn("RF", ops)
