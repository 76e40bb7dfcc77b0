"""Steps as programs, and what happens to them when nodes die.

Compiling is what takes time, so runs share programs and are of one small model.
"""

import functools
import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized
import jax
import numpy as np

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.stage import programs as programs_lib
from bamboo_jax.training import cohort as cohort_lib, run, worker as worker_lib
from bamboo_jax.training.record import workdir
from bamboo_jax.training.setup import accept, build, job as job_lib, sizes
from bamboo_jax.verify import trials
from configs import sweep_faults
from tests import samples, tiny

_PROGRAMS = programs_lib.ProgramCache()
_DEATHS = (
    ("last_stage_after_the_passes", "1,0/1,reduce", {}),
    ("without_a_spare", "1,0/1,5", {"redundancy__spares": 0}),
    ("by_state", "1,0/1,refresh", {"redundancy__mode": "lazy", "redundancy__refresh": "state"}),
    ("two_in_one_place", "1,0/1,2 3,0/1,4", {"redundancy__spares": 2}),
)


def make_config(**changes):
  """Returns a config; `pipeline__num_stages=4` changes that key."""
  config = sweep_faults.get_config()
  config.num_steps = 4
  config.model.options.num_blocks = 2
  config.pipeline.executor = "spmd"
  config.pipeline.num_pipelines = 1
  config.pipeline.num_stages = 2
  config.pipeline.num_microbatches = 2
  config.redundancy.spares = 1
  config.metrics.plots = False
  return tiny.change(config, **changes)


@functools.cache
def make_whole(num_blocks=2):
  return build.make_task(make_config(model__options__num_blocks=num_blocks)).whole


@functools.cache
def make_profile():
  config = make_config()
  return build.make_profile(config, build.make_task(config))


def parse(text):
  """Returns deaths written as "1,0/1,5 2,0/0,reduce": step, place, point."""
  lines = "\n".join(f"{fault},kill" for fault in text.split())
  return faults_lib.parse_faults(lines, source="test")


class Run:
  """A run of four steps in a folder of its own.

  Attributes:
    worker: Has trained.
    lines: The log.
  """

  def __init__(self, faults="", *, num_steps=4, **changes):
    config = make_config(**changes)
    config.num_steps = max(config.num_steps, num_steps)
    config = accept.accept(config)
    numbers = range(2 * sizes.num_nodes(config))
    job = job_lib.make_job(
        config,
        devices=devices_lib.place_nodes(numbers),
        prepared=trials.prepare(config, _PROGRAMS, make_whole(config.model.options["num_blocks"])),
    )
    cohort = cohort_lib.LocalCohort(sizes.num_nodes(config))
    with tempfile.TemporaryDirectory() as folder:
      given = job_lib.Environment(
          cohort=cohort, workdir=workdir.Workdir(pathlib.Path(folder)), faults=parse(faults)
      )
      self.worker = worker_lib.Worker(job, given)
      self.worker.run(stop_at=num_steps)
      self.lines = jsonl.read_lines(given.workdir.metrics)

  @property
  def executor(self):
    return self.worker._step.executor

  def by_rows(self):
    """Returns for each step whether it was run by rows, which are measured."""
    steps = [line for line in self.lines if "event" not in line]
    return ["bubble_pct" in line for line in steps]

  def state(self):
    return jax.tree.map(np.array, self.worker.engine.layer_states())

  def check_replicas(self):
    self.worker.state.compare_copies(self.worker._journal.during)

  def recoveries(self):
    return [line for line in self.lines if line.get("event") == "recovery"]


@functools.cache
def run_rows():
  """Returns losses and state of a run by rows without a death."""
  run = Run(pipeline__executor="rows")
  return jsonl.column(run.lines, "loss")[1], run.state()


@functools.cache
def run_undisturbed(num_pipelines=1):
  return Run(pipeline__num_pipelines=num_pipelines)


class ProgramStepTest(parameterized.TestCase):

  def assert_same(self, run, num_pipelines=1):
    """Fails unless losses and state are those of the run without a death."""
    want = run_undisturbed(num_pipelines)
    self.assertEqual(jsonl.column(run.lines, "loss"), jsonl.column(want.lines, "loss"))
    same = lambda a, b: a.tobytes() == b.tobytes()
    same = jax.tree.map(same, run.state(), want.state())
    self.assertTrue(all(jax.tree.leaves(same)), same)
    run.check_replicas()

  def test_without_a_death_it_is_rows(self):
    losses, want = run_rows()
    run = run_undisturbed()
    self.assertEqual(run.by_rows(), [False] * 4)
    got = jsonl.column(run.lines, "loss")[1]
    np.testing.assert_allclose(got, losses, rtol=1e-5)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-5), run.state(), want
    )
    run.check_replicas()

  @parameterized.named_parameters(
      ("first_stage", "1,0/0,4", {}),
      ("after_the_commit", "1,0/1,apply", {}),
      *samples.draw(_DEATHS, 1),
  )
  def test_a_death(self, faults, changes):
    run = Run(faults, **changes)
    self.assertEqual(run.by_rows(), [False] * 4)
    recoveries = run.recoveries()
    self.assertLen(recoveries, len(faults.split()))
    self.assertEqual(recoveries[0]["rung"], "shadow")
    self.assertEqual(recoveries[0]["victims"], [faults.split(",")[1]])
    self.assertGreater(recoveries[0]["first_owed_at_secs"], recoveries[0]["ready_at_secs"])
    self.assert_same(run)

  def test_a_pipeline_computes_the_share_of_another(self):
    """Nobody who is left of the first pipeline has the last stage."""
    run = Run("1,0/0,3 1,0/1,6 2,0/1,2", pipeline__num_pipelines=2, redundancy__spares=0)
    self.assertEqual(run.by_rows(), [False] * 4)
    self.assertEqual([e["rung"] for e in run.recoveries()], ["shadow", "reroute", "shadow"])
    self.assert_same(run, 2)

  def test_a_pipeline_is_left_out(self):
    run = Run(
        "1,0/0,3",
        pipeline__num_pipelines=2,
        redundancy__spares=0,
        redundancy__mode="none",
        recovery__drop=True,
        recovery__reroute=False,
    )
    self.assertEqual(run.by_rows(), [False] * 4)
    self.assertEqual([e["rung"] for e in run.recoveries()], ["drop"])

  @parameterized.named_parameters(
      ("without_replicas", "1,0/1,3", {"redundancy__mode": "none"}),
      ("owner_and_shadow", "1,0/1,3 1,0/0,reduce", {}),
  )
  def test_a_stage_without_a_copy(self, faults, changes):
    run = Run(faults, checkpoint__every_steps=0, **changes)
    self.assertEqual(run.recoveries()[-1]["rung"], "checkpoint")
    losses, _ = run_rows()
    got = jsonl.column(run.lines, "loss")[1]
    np.testing.assert_allclose(got[-4:], losses, rtol=1e-5)


class ConfigTest(parameterized.TestCase):

  def test_blocks_stay_whole(self):
    config = accept.accept(make_config())
    cuts = build.find_cuts(config, build.make_task(config))
    self.assertEqual(cuts, (3,))
    plan = build.make_plan(config, make_profile(), cuts=cuts)
    self.assertEqual(plan.partition.bounds, (0, 3, 6))

  @parameterized.named_parameters(
      ("one_block", {"model__options__num_blocks": 1}, "differs from .*executor='rows'"),
      (
          "unequal_stages",
          {"pipeline__num_stages": 3},
          "num_stages=3 does not divide the 2 equal blocks .*executor='rows'",
      ),
      ("shares", {"pipeline__num_shares": 2}, "num_shares=2 must be num_pipelines=1"),
      ("one_stage", {"pipeline__num_stages": 1}, "needs at least 2 stages"),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      config = accept.accept(make_config(**changes))
      build.find_cuts(config, build.make_task(config))


class RunTest(absltest.TestCase):

  def test_either_executor_resumes_what_the_other_has_saved(self):
    workdir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    faults = workdir / "faults.csv"
    faults.write_text("step,node,at,kind\n1,0/0,3,kill\n")
    config = make_config(
        checkpoint__every_steps=2,
        evaluate__every_steps=3,
        evaluate__num_microbatches=2,
        num_steps=3,
    )
    take = lambda config: trials.prepare(config, _PROGRAMS, make_whole())
    self.enterContext(mock.patch.object(job_lib, "take", take))
    run.train_and_evaluate(config, workdir=str(workdir), faults=str(faults))
    summary = json.loads((workdir / "summary.json").read_text())
    self.assertEqual(summary["steps"], 3)
    self.assertLen(summary["recoveries"], 1)
    lines = jsonl.read_lines(workdir / "metrics.jsonl")
    self.assertEqual(jsonl.column(lines, "loss")[0], (1, 2, 3))
    # A program does not tell when its passes run.
    self.assertEqual(jsonl.column(lines, "bubble_pct")[0], ())
    self.assertEqual(jsonl.column(lines, "loss", event="eval")[0], (3,))

    config.num_steps = 4
    config.pipeline.executor = "rows"
    run.train_and_evaluate(config, workdir=str(workdir))
    lines = jsonl.read_lines(workdir / "metrics.jsonl")
    np.testing.assert_allclose(jsonl.column(lines, "loss")[1], run_rows()[0], rtol=1e-5)
