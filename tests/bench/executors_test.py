"""The benchmark of executors: predictions, rounds, and how results are put."""

import functools
import json
import pathlib
import tempfile
import types

from absl.testing import absltest

from bamboo_jax.bench import executors
from bamboo_jax.bench import predict
from bamboo_jax.bench import table
from bamboo_jax.plan import planner
from bamboo_jax.train.setup import build
from configs import sweep_faults
from tests import profiles


@functools.cache
def make_config():
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 2
  config.pipeline.num_pipelines = 1
  config.pipeline.num_stages = 2
  config.redundancy.mode = "eager"
  return config


@functools.cache
def make_task():
  return build.make_task(make_config())


def make_plan():
  """Returns 2 stages of 2 blocks; only their layers take time, 1 + 2 ms."""
  layers = [
      profiles.make_layer(
          name,
          forward_ms=is_block * 1.0,
          backward_ms=is_block * 2.0,
          update_ms=1.0,
      )
      for name in make_task().layer_names
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
  """Two processes; a program takes a tenth of the time of rows."""

  def __init__(self):
    self.commands = []

  def ask(self, command):
    self.commands.append(command)
    if command == "difference":
      return [1e-7, 2e-7]
    if command.startswith("run rows"):
      return [{"cpu_ms": ms, "host_bytes": 7, "vote_ms": 0.1} for ms in (9, 10)]
    return [{"cpu_ms": 1, "host_bytes": 0}] * 2


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

  def test_longer_pipelines(self):
    plan = predict.lengthen(make_plan(), 4, period=2)
    self.assertEqual(plan.partition.bounds, (0, 3, 5, 7, 10))
    pair = executors.plan_pair(make_config(), make_task(), plan)
    size = types.SimpleNamespace(**executors.summarise_size(pair))
    self.assertEqual((size.num_stages, size.num_microbatches), (4, 8))
    self.assertEqual((size.num_free, size.num_redundant), (31, 32))
    self.assertLessEqual(size.program_redundant, 0.05)

  def test_lockstep_costs_little(self):
    for num_stages in (4, 8, 16):
      plan = predict.lengthen(make_plan(), num_stages, period=2)
      pair = executors.plan_pair(make_config(), make_task(), plan)
      size = types.SimpleNamespace(**executors.summarise_size(pair))
      self.assertLessEqual(size.to_rows, 1.05)

  def test_step(self):
    def step_ms(executor, mode):
      return executors.predict_step_ms(
          make_pair(), f"{executor}/{mode}", refresh_ms=0.5
      )

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
    self.assertEqual(tuple(steps), executors.VARIANTS)
    names = ["step_ms", "cpu_ms", "host_bytes"]
    self.assertEqual(list(steps["rows/lazy"][0]), names)
    self.assertEqual(steps["rows/lazy"][0]["cpu_ms"], 10)
    self.assertEqual(steps["rows/lazy"][0]["host_bytes"], 7)
    self.assertEqual(steps["spmd/lazy"][0]["cpu_ms"], 1)
    self.assertEqual(difference, 2e-7)
    rounds = " ".join(ours.commands).split("feed ")[1:]
    self.assertLen(rounds, 8)
    for k, text in enumerate(rounds):
      number, *commands = text.replace("difference", "").split()
      self.assertEqual(int(number), k)
      self.assertCountEqual(commands[1::2], executors.VARIANTS)


class ReportTest(absltest.TestCase):

  def make_report(self):
    times = {"rows": 10.0, "spmd": 12.0}
    steps = {
        variant: [
            {
                "step_ms": times[variant[:4]] + k,
                "cpu_ms": 5.0,
                "host_bytes": 2**20,
            }
            for k in range(3)
        ]
        for variant in executors.VARIANTS
    }
    built = {
        "compile_secs": 1.5,
        "device_bytes": 2**21,
        "host_bytes": 3 * 2**20,
    }
    results = executors.summarise(
        steps,
        dict.fromkeys(executors.VARIANTS, built),
        dict.fromkeys(executors.VARIANTS, 9.0),
    )
    found = {
        "partition": (0, 3, 6),
        "difference": 1e-7,
        "results": results,
        "sizes": [executors.summarise_size(make_pair())],
    }
    return found, steps

  def test_summary(self):
    found, _ = self.make_report()
    result = found["results"][-1]
    self.assertEqual(result["variant"], "spmd/eager")
    self.assertEqual(result["step_ms"], 13.0)
    self.assertEqual(result["host_mib"], 3.0)
    self.assertEqual(
        result["ratios"]["rows/none"],
        table.paired_ratio([12.0, 13.0, 14.0], [10.0, 11.0, 12.0]),
    )
    self.assertEqual(result["ratios"]["spmd/lazy"].median, 1.0)

  def test_tables(self):
    text = executors.render(self.make_report()[0])
    self.assertRegex(text, r"rows/none +11\.0 +9\.0 +5\.0 +1\.5 +2\.0 +3\.0")
    self.assertRegex(text, r"spmd/eager +1\.182 \[1\.167, 1\.200\]")
    self.assertRegex(text, r"(?m)^2 +4 +30\.0 +\S+ +30\.0 +13\.3% +1\.000")

  def test_grids(self):
    timelines = make_pair().timelines
    self.assertEqual(list(timelines), ["rows", "spmd"])
    self.assertAlmostEqual(timelines["spmd"].span_ms, 34.0)
    for timeline in timelines.values():
      self.assertTrue(
          any(s.instruction.op.value == "RF" for s in timeline.slots)
      )

  def test_files(self):
    found, steps = self.make_report()
    with tempfile.TemporaryDirectory() as folder:
      out = pathlib.Path(folder)
      executors.write(found, steps, make_pair(), out)
      self.assertCountEqual(
          [path.name for path in out.iterdir()],
          ["report.json", "steps.csv", "grid_rows.png", "grid_spmd.png"],
      )
      lines = (out / "steps.csv").read_text().splitlines()
      self.assertEqual(lines[0], "round,variant,step_ms,cpu_ms,host_bytes")
      self.assertEqual(lines[1], "0,rows/none,10.0,5.0,1048576")
      self.assertLen(json.loads((out / "report.json").read_text())["sizes"], 1)
