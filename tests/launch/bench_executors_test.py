"""The benchmark of executors: predictions, rounds, and how results are put."""

import functools
import json
import pathlib
import tempfile

from absl.testing import absltest

from bamboo_jax.plan import cost_model
from bamboo_jax.plan import planner
from bamboo_jax.train import build
from configs import sweep_faults
from launch import ratios
from launch.executors import measure
from launch.executors import predict
from launch.executors import report


@functools.cache
def make_config():
  config = sweep_faults.get_config()
  config.pipeline.num_pipelines = 1
  config.pipeline.num_stages = 2
  config.redundancy.mode = "eager"
  return config


@functools.cache
def make_task():
  return build.make_task(make_config())


def make_plan():
  """Returns 2 stages of 2 blocks; only their layers take time, 1 + 2 ms."""
  layers = tuple(
      cost_model.LayerCost(
          name=name,
          forward_ms=is_block * 1.0,
          backward_ms=is_block * 2.0,
          update_ms=1.0,
          parameter_bytes=4,
          slot_bytes=8,
          activation_bytes=4,
          residual_bytes=4,
      )
      for name in make_task().layer_names
      for is_block in [name.startswith("block")]
  )
  profile = cost_model.Profile(
      layers=layers,
      link_latency_ms=0.0,
      link_bytes_per_ms=1e12,
      reduce_latency_ms=0.0,
      reduce_bytes_per_ms=1e12,
      dispatch_ms=0.0,
      measured=False,
      fingerprint={},
  )
  return planner.make_plan(
      profile,
      num_stages=2,
      num_pipelines=1,
      num_microbatches=4,
      microbatch_size=1,
      cuts=(1, 3, 5),
  )


@functools.cache
def make_pair():
  return predict.plan_pair(
      make_config(),
      make_task(),
      make_plan(),
      modes=(*measure.MODES, "bubble"),
  )


class FakeProcesses:
  """Two processes; a program takes a tenth of the time of rows."""

  def __init__(self):
    self.commands = []

  def ask(self, command):
    self.commands.append(command)
    answers = [{"cpu_secs": 0.1, "difference": 1e-7 * rank} for rank in (1, 2)]
    if command.startswith("commit"):
      answers = [a | {"cpu_secs": 1.0, "host_bytes": 7} for a in answers]
    return list(map(json.dumps, answers))


class PredictTest(absltest.TestCase):

  def test_the_same_pipeline(self):
    size = predict.summarise(make_pair())
    self.assertEqual((size.num_stages, size.num_microbatches), (2, 4))
    # A stage takes 2 ms forth and 4 ms back, so rows take (4 + 1) * 6 ms; in
    # ticks a forward pass takes as long as the backward pass beside it.
    self.assertAlmostEqual(size.rows_ms, 30.0)
    self.assertAlmostEqual(size.program_ms, 36.0)
    self.assertAlmostEqual(size.program_redundant_ms, 36.0)
    self.assertEqual((size.num_free, size.num_redundant), (8, 8))
    self.assertEqual((size.num_ticks, size.idle_slots), (10, 4))
    self.assertLess(size.filled_bubble, size.program_bubble)

  def test_longer_pipelines(self):
    pair = predict.plan_size(make_config(), make_task(), make_plan(), 4)
    self.assertEqual(pair.plan.partition.bounds, (0, 3, 5, 7, 10))
    size = predict.summarise(pair)
    self.assertEqual((size.num_stages, size.num_microbatches), (4, 8))
    self.assertEqual((size.num_free, size.num_redundant), (32, 32))
    self.assertEqual(size.program_ms, size.program_redundant_ms)

  def test_step(self):
    def step_ms(executor, mode):
      return predict.predict_step_ms(
          make_pair(), executor, mode, refresh_ms=0.5
      )

    # Updates of 3 layers, and with replicas of those of the other stage too.
    self.assertAlmostEqual(step_ms("rows", "none"), 30.0 + 3.0)
    self.assertAlmostEqual(step_ms("rows", "lazy"), 30.0 + 0.5 + 6.0)
    self.assertAlmostEqual(step_ms("spmd", "none"), 36.0 + 3.0)
    self.assertAlmostEqual(step_ms("spmd", "eager"), 36.0 + 0.5 + 6.0)


class MeasureTest(absltest.TestCase):

  def test_variants_take_turns_on_the_same_batches(self):
    ours = FakeProcesses()
    steps, difference = measure.run_rounds(ours, num_rounds=3)
    self.assertEqual({len(own) for own in steps.values()}, {3})
    self.assertEqual(tuple(steps), measure.VARIANTS)
    self.assertEqual(steps["rows/lazy"][0].cpu_ms, 1000.0)
    self.assertEqual(steps["rows/lazy"][0].host_bytes, 7)
    self.assertEqual(steps["spmd/lazy"][0].cpu_ms, 100.0)
    self.assertEqual(difference, 2e-7)
    rounds = " ".join(ours.commands).split("feed ")[1:]
    self.assertLen(rounds, 8)
    for k, text in enumerate(rounds):
      number, *commands = text.replace("difference", "").split()
      self.assertEqual(int(number), k)
      self.assertLen(commands, 2 * len(measure.VARIANTS))

  def test_most_of_all_processes(self):
    self.assertEqual(
        measure.take_most([{"a": {"x": 1, "y": 4}}, {"a": {"x": 2, "y": 3}}]),
        {"a": {"x": 2, "y": 4}},
    )


class ReportTest(absltest.TestCase):

  def make_report(self):
    times = {"rows": 10.0, "spmd": 12.0}
    steps = {
        variant: [
            measure.Step(times[variant[:4]] + k, cpu_ms=5.0, host_bytes=2**20)
            for k in range(3)
        ]
        for variant in measure.VARIANTS
    }
    built = {
        "compile_secs": 1.5,
        "device_bytes": 2**21,
        "host_bytes": 3 * 2**20,
        "padding_bytes": 0,
    }
    results = report.summarise(
        steps,
        dict.fromkeys(measure.VARIANTS, built),
        dict.fromkeys(measure.VARIANTS, 9.0),
    )
    found = report.Report(
        (0, 3, 6), 1e-7, results, [predict.summarise(make_pair())]
    )
    return found, steps

  def test_summary(self):
    found, _ = self.make_report()
    result = found.results[-1]
    self.assertEqual(result.variant, "spmd/eager")
    self.assertEqual(result.step_ms, 13.0)
    self.assertEqual(result.host_bytes, 3 * 2**20)
    self.assertEqual(
        result.ratios["rows/none"],
        ratios.paired_ratio([12.0, 13.0, 14.0], [10.0, 11.0, 12.0]),
    )
    self.assertEqual(result.ratios["spmd/lazy"].median, 1.0)

  def test_tables(self):
    text = report.render_report(self.make_report()[0])
    self.assertRegex(text, r"rows/none +11\.0 +9\.0 +5\.0 +1\.5 +2\.0 +3\.0")
    self.assertRegex(text, r"spmd/eager +1\.182 \[1\.167, 1\.200\]")
    self.assertRegex(text, r"(?m)^2 +4 +30\.0 +\S+ +36\.0 +0\.0% +1\.200")

  def test_grids(self):
    grids = report.render_grids(make_pair())
    self.assertEqual(list(grids), ["rows", "spmd"])
    self.assertIn("RF", grids["spmd"])
    self.assertIn("columns are 36 ms", grids["spmd"])

  def test_files(self):
    found, steps = self.make_report()
    with tempfile.TemporaryDirectory() as folder:
      out = pathlib.Path(folder)
      report.write(found, steps, make_pair(), out)
      self.assertCountEqual(
          [path.name for path in out.iterdir()],
          ["report.json", "steps.csv", "grid_rows.png", "grid_spmd.png"],
      )
      lines = (out / "steps.csv").read_text().splitlines()
      self.assertEqual(lines[0], "round,variant,step_ms,cpu_ms,host_bytes")
      self.assertEqual(lines[1], "0,rows/none,10.0,5.0,1048576")
      self.assertLen(json.loads((out / "report.json").read_text())["sizes"], 1)


if __name__ == "__main__":
  absltest.main()
