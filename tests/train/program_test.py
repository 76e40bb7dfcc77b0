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
from bamboo_jax.faults import fault_file
from bamboo_jax.metrics import jsonl
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.train import build
from bamboo_jax.train import build_program
from bamboo_jax.train import executor as executor_lib
from bamboo_jax.train import program_executor
from bamboo_jax.train import run
from configs import sweep_faults

_make_task = build.make_task
_PROGRAMS = program_cache.ProgramCache()


def setUpModule():
  jax.devices()  # Now there are 8, however few a run asks for.


def make_config(**changes):
  """Returns a config; `pipeline__num_stages=4` changes that key."""
  config = copy.deepcopy(sweep_faults.get_config())
  config.num_steps = 4
  config.pipeline.executor = "spmd"
  config.pipeline.num_pipelines = 1
  config.pipeline.num_stages = 2
  config.pipeline.num_microbatches = 2
  config.redundancy.spares = 1
  config.metrics.plots = False
  for path, value in changes.items():
    *sections, key = path.split("__")
    section = config
    for name in sections:
      section = section[name]
    section[key] = value
  return config


@functools.cache
def make_whole():
  return build.make_task(make_config()).whole


def make_task(config):
  """Returns the task, with a model whose programs others have too."""
  return build.Task(make_whole(), _make_task(config).batches)


@functools.cache
def make_profile():
  config = make_config()
  return build.make_profile(config, build.make_task(config))


@functools.cache
def make_cache(*redundancy):
  """Returns the cache of all runs with this redundancy."""
  return executor_lib.Cache(stages=_PROGRAMS)


def parse(text):
  """Returns deaths written as "1,0/1,5 2,0/0,reduce": step, place, point."""
  lines = "\n".join(f"{fault},kill" for fault in text.split())
  return fault_file.parse_faults(lines, source="test")


def make_executor(make=program_executor.ProgramExecutor, faults="", **changes):
  """Returns an executor in the state before the first step, and its data."""
  config = make_config(**changes)
  task = make_task(config)
  plan = build.make_plan(
      config,
      make_profile(),
      cuts=build_program.find_cuts(config, task),
  )
  cache = make_cache(config.redundancy.mode, config.redundancy.refresh)
  made = make(config, task, plan, cache=cache, faults=parse(faults))
  made.set_state(spec_lib.init_layers(task.whole))
  return made, task.batches


def train(executor, batches, *, num_steps=4):
  """Returns the results of some steps."""
  return [
      executor.run(
          step,
          lambda m, keys, step=step: {
              key: batches.microbatch(step, m)[key] for key in keys
          },
      )
      for step in range(num_steps)
  ]


@functools.cache
def train_by_rows():
  """Returns losses and state of a run by rows without a death."""
  executor, batches = make_executor(executor_lib.RowsExecutor)
  results = train(executor, batches)
  executor.close()
  return [result.loss for result in results], executor.layer_states()


def is_by_rows(result):
  return bool(result.measured)


class ProgramExecutorTest(parameterized.TestCase):

  def assert_same_run(self, executor, results):
    """Fails unless losses and state are those of rows without a death."""
    losses, want = train_by_rows()
    np.testing.assert_allclose([r.loss for r in results], losses, rtol=1e-5)
    got = executor.layer_states()
    self.assertEqual(set(got), set(want))
    for name, layer in want.items():
      pairs = zip(
          jax.tree.leaves(layer), jax.tree.leaves(got[name]), strict=True
      )
      for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5, err_msg=name)

  def test_without_a_death(self):
    executor, batches = make_executor()
    results = train(executor, batches)
    self.assert_same_run(executor, results)
    self.assertFalse(any(map(is_by_rows, results)))
    self.assertTrue(all(r.grad_norm > 0 for r in results))
    executor.check_replicas(4)
    executor.close()

  @parameterized.named_parameters(
      ("first_stage", "1,0/0,3", {}),
      (
          "last_stage_by_state",
          "1,0/1,apply",
          {"redundancy__mode": "lazy", "redundancy__refresh": "state"},
      ),
  )
  def test_a_death_and_a_spare_node(self, faults, changes):
    executor, batches = make_executor(faults=faults, **changes)
    engine = executor_lib.program_engine.SpmdEngine
    read = engine.surviving_states
    with (
        mock.patch.object(engine, "layer_states", side_effect=OSError),
        mock.patch.object(engine, "replica_states", side_effect=OSError),
        mock.patch.object(engine, "surviving_states", autospec=True) as reads,
    ):
      reads.side_effect = read
      results = train(executor, batches)

    # Nobody reads the grave.
    ((_, lost),) = [call.args for call in reads.call_args_list]
    self.assertEqual(
        {f"{pipeline}/{stage}" for pipeline, stage in lost},
        {faults.split(",")[1]},
    )
    # Rows run the step again; then a program has all nodes once more.
    self.assertEqual(
        list(map(is_by_rows, results)), [False, True, False, False]
    )
    (recovery,) = results[1].recoveries
    self.assertEqual(recovery.rung, "shadow")
    self.assertEqual(recovery.victims, (faults.split(",")[1],))
    self.assertEqual(recovery.redone, {"F": 4, "B": 4})
    self.assertGreater(
        recovery.kill_to_step_end_secs, recovery.kill_to_first_instruction_secs
    )
    self.assert_same_run(executor, results)
    executor.check_replicas(4)
    executor.close()

  @parameterized.named_parameters(
      ("no_spare", "1,0/1,3", [False, True, True, True]),
      ("a_spare_too_few", "0,0/0,3 2,0/1,2", [True, False, True, True]),
  )
  def test_rows_go_on_without_a_spare_node(self, faults, by_rows):
    num_spares = faults.count(" ")
    executor, batches = make_executor(
        faults=faults, redundancy__spares=num_spares
    )
    results = train(executor, batches)
    self.assertEqual(list(map(is_by_rows, results)), by_rows)
    self.assert_same_run(executor, results)
    executor.close()

  @parameterized.named_parameters(
      ("without_replicas", "0,0/1,3", {"redundancy__mode": "none"}),
      ("owner_and_shadow", "0,0/1,3 0,0/0,reduce", {}),
  )
  def test_a_stage_without_a_copy(self, faults, changes):
    executor, batches = make_executor(faults=faults, **changes)
    with self.assertRaises(base.UnrecoverableHereError):
      train(executor, batches)
    self.assertEqual(executor.recoveries[0].victims, ("0/1",))
    executor.close()

  def test_evaluates_like_rows(self):
    executor, batches = make_executor()
    train(executor, batches, num_steps=1)
    rows, _ = make_executor(executor_lib.RowsExecutor)
    rows.set_state(executor.layer_states())
    data = [batches.eval_microbatch(0, m) for m in range(2)]
    self.assertEqual(executor.evaluate(data), rows.evaluate(data))
    # It goes on training where it was.
    before = executor.layer_states()
    for name, layer in rows.layer_states().items():
      jax.tree.map(np.testing.assert_array_equal, layer, before[name])
    executor.close()
    rows.close()

  def test_a_wrong_replica_is_found(self):
    executor, _ = make_executor()
    executor.check_replicas(0)
    with mock.patch.object(
        executor_lib.program_engine.SpmdEngine,
        "replica_states",
        lambda engine, pipeline: jax.tree.map(
            lambda a: a + 1, engine.layer_states(pipeline)
        ),
    ):
      with self.assertRaisesRegex(
          base.ReplicaMismatchError, "After step 3 .* 'embed"
      ):
        executor.check_replicas(3)
    executor.close()


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
    cache = make_cache("eager", "gradient")
    self.enterContext(mock.patch.object(executor_lib, "Cache", lambda: cache))
    self.enterContext(mock.patch.object(build, "make_task", make_task))
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
        jsonl.column(lines, "loss")[1], train_by_rows()[0], rtol=1e-5
    )


if __name__ == "__main__":
  absltest.main()
