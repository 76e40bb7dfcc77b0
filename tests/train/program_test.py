"""Steps as one program, and what happens to them when nodes die.

Compiling is what takes time, so runs share programs and are of one small model.
"""

import copy
import functools
import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.spmd import engine as engine_lib
from bamboo_jax.train import environment
from bamboo_jax.train import run
from bamboo_jax.train import worker as worker_lib
from bamboo_jax.train.members import local_cohort
from bamboo_jax.train.record import workdir
from bamboo_jax.train.setup import build
from bamboo_jax.train.setup import build_program
from bamboo_jax.train.setup import job as job_lib
from configs import sweep_faults
from tests import tiny

_PROGRAMS = program_cache.ProgramCache()


def setUpModule():
  jax.devices()  # Now there are 8, however few a run asks for.


def make_config(**changes):
  """Returns a config; `pipeline__num_stages=4` changes that key."""
  config = copy.deepcopy(sweep_faults.get_config())
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
def make_whole():
  return build.make_task(make_config()).whole


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
    numbers = range(2 * build.num_nodes(config))
    job = job_lib.make_job(
        config,
        devices=devices_lib.place_nodes(numbers),
        cache=_PROGRAMS,
        whole=make_whole(),
    )
    cohort = local_cohort.LocalCohort(build.num_nodes(config))
    with tempfile.TemporaryDirectory() as folder:
      given = environment.Environment(
          cohort=cohort,
          workdir=workdir.Workdir(pathlib.Path(folder)),
          faults=parse(faults),
          director=cohort,
      )
      self.worker = worker_lib.Worker(job, given)
      self.worker.run(stop_at=num_steps)
      self.lines = jsonl.read_lines(given.workdir.metrics)

  @property
  def step(self):
    return self.worker._step

  def by_rows(self):
    """Returns for each step whether it was run by rows, which are measured."""
    steps = [line for line in self.lines if "event" not in line]
    return ["bubble_pct" in line for line in steps]

  def state(self):
    with self.step.lend_state():
      return jax.tree.map(np.array, self.worker.engine.layer_states())

  def check_replicas(self):
    self.worker._check.check_now()

  def recoveries(self):
    return [line for line in self.lines if line.get("event") == "recovery"]


@functools.cache
def run_rows():
  """Returns losses and state of a run by rows without a death."""
  run = Run(pipeline__executor="rows")
  return jsonl.column(run.lines, "loss")[1], run.state()


class ProgramStepTest(parameterized.TestCase):

  def assert_same(self, run):
    """Fails unless losses and state are those of rows without a death."""
    losses, want = run_rows()
    got = jsonl.column(run.lines, "loss")[1]
    np.testing.assert_allclose(got, losses, rtol=1e-5)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-5),
        run.state(),
        want,
    )

  def test_without_a_death(self):
    run = Run()
    self.assert_same(run)
    self.assertEqual(run.by_rows(), [False] * 4)
    self.assertTrue(all(n > 0 for n in jsonl.column(run.lines, "grad_norm")[1]))
    run.check_replicas()

  @parameterized.named_parameters(
      ("first_stage", "1,0/0,3", {}),
      (
          "last_stage_by_state",
          "1,0/1,apply",
          {"redundancy__mode": "lazy", "redundancy__refresh": "state"},
      ),
  )
  def test_a_death_and_a_spare_node(self, faults, changes):
    engine = engine_lib.SpmdEngine
    read = engine.surviving_states
    with mock.patch.object(engine, "surviving_states", autospec=True) as reads:
      reads.side_effect = read
      run = Run(faults, **changes)
    # Nobody reads the grave.
    ((_, lost),) = [call.args for call in reads.call_args_list]
    self.assertEqual(set(map(str, lost)), {faults.split(",")[1]})
    # Rows run the step again; then a program has all nodes once more.
    self.assertEqual(run.by_rows(), [False, True, False, False])
    (recovery,) = run.recoveries()
    self.assertEqual(recovery["rung"], "shadow")
    self.assertEqual(recovery["victims"], [faults.split(",")[1]])
    self.assert_same(run)
    run.check_replicas()

  @parameterized.named_parameters(
      ("no_spare", "1,0/1,3", [False, True, True, True]),
      ("a_spare_too_few", "0,0/0,3 2,0/1,2", [True, False, True, True]),
  )
  def test_rows_go_on_without_a_spare_node(self, faults, by_rows):
    run = Run(faults, redundancy__spares=faults.count(" "))
    self.assertEqual(run.by_rows(), by_rows)
    self.assert_same(run)

  @parameterized.named_parameters(
      ("without_replicas", "1,0/1,3", {"redundancy__mode": "none"}),
      ("owner_and_shadow", "1,0/1,3 1,0/0,reduce", {}),
  )
  def test_a_stage_without_a_copy(self, faults, changes):
    run = Run(faults, checkpoint__every_steps=0, **changes)
    self.assertEqual(run.recoveries()[-1]["rung"], "checkpoint")
    self.assert_same(run)

  def test_a_wrong_replica_is_found(self):
    run = Run(num_steps=1)
    run.check_replicas()
    with mock.patch.object(
        engine_lib.SpmdEngine,
        "replica_states",
        lambda engine, pipeline: jax.tree.map(
            lambda a: a + 1, engine.layer_states(pipeline)
        ),
    ):
      with self.assertRaisesRegex(
          base.ReplicaMismatchError, "After step 1 .* 'embed.* nodes: 0 . 1"
      ):
        run.check_replicas()


class ConfigTest(parameterized.TestCase):

  def test_blocks_stay_whole(self):
    config = make_config(pipeline__num_stages=3)
    task = build.make_task(config)
    cuts = build_program.find_cuts(config, task)
    self.assertEqual(cuts, (1, 3, 5))
    plan = build.make_plan(config, make_profile(), cuts=cuts)
    self.assertContainsSubset(plan.partition.bounds[1:-1], cuts)

  @parameterized.named_parameters(
      (
          "one_block",
          {"model__options__num_blocks": 1},
          "differs from .*executor='rows'",
      ),
      (
          "too_many_stages",
          {"pipeline__num_stages": 5},
          "num_stages=5 is too large.*2 equal blocks.* 4 at most",
      ),
      ("shares", {"pipeline__num_shares": 2}, "num_shares=2 must be .* 1, in"),
      ("slots", {"redundancy__slots": "host"}, "slots='host' must be 'device'"),
  )
  def test_refuses(self, changes, message):
    config = make_config(**changes)
    with self.assertRaisesRegex(ValueError, message):
      build_program.find_cuts(config, build.make_task(config))

  def test_unknown_executor(self):
    with self.assertRaisesRegex(ValueError, "did you mean 'spmd'"):
      build.check_config(make_config(pipeline__executor="spdm"))


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
    make_job = functools.partial(
        job_lib.make_job, cache=_PROGRAMS, whole=make_whole()
    )
    self.enterContext(mock.patch.object(job_lib, "make_job", make_job))
    run.train_and_evaluate(config, workdir=str(workdir), faults=str(faults))
    summary = json.loads((workdir / "summary.json").read_text())
    self.assertEqual(summary["steps"], 3)
    self.assertLen(summary["recoveries"], 1)
    lines = jsonl.read_lines(workdir / "metrics.jsonl")
    self.assertEqual(jsonl.column(lines, "loss")[0], (1, 2, 3))
    # A program does not tell when its passes run.
    self.assertEqual(jsonl.column(lines, "bubble_pct")[0], (2,))
    self.assertEqual(jsonl.column(lines, "loss", event="eval")[0], (3,))

    config.num_steps = 4
    config.pipeline.executor = "rows"
    run.train_and_evaluate(config, workdir=str(workdir))
    lines = jsonl.read_lines(workdir / "metrics.jsonl")
    np.testing.assert_allclose(
        jsonl.column(lines, "loss")[1], run_rows()[0], rtol=1e-5
    )


if __name__ == "__main__":
  absltest.main()
