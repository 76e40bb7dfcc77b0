"""Steps as programs, and what happens to them when nodes die."""

from unittest import mock

from absl.testing import parameterized
import numpy as np

from bamboo_jax.metrics import jsonl
from bamboo_jax.training import run
from bamboo_jax.training.setup import accept, build, job as job_lib
from bamboo_jax.verify import trials as trials_lib
from tests import folders, samples, tiny
from tests.verify import small

# Faults and changes; the last: two in one place.
_DEATHS = """
1,0/1,reduce
1,0/1,5 spares=0
1,0/1,refresh mode=lazy refresh=state
1,0/1,2 3,0/1,4 spares=2
"""


def read(words="", size="2x2x1", executor="spmd"):
  """Returns trials and a case as `small.read` does."""
  return small.read(f"{size} pipeline__executor={executor} spares=1 {words}")


def make_config(**changes):
  """Returns a config; `pipeline__num_stages=4` changes that key."""
  config = small.make_config(2, 2, 1, spares=1, pipeline__executor="spmd", num_steps=4)
  return tiny.change(config, metrics__plots=False, **changes)


class ProgramStepTest(folders.FolderCase):

  @parameterized.parameters(
      *("1,0/0,4", "1,0/1,apply"), *samples.draw(_DEATHS.strip().splitlines(), 1)
  )
  def test_a_death(self, words):
    trials, case = read(words)
    self.assertEqual(trials.run(case).rungs, ("shadow",) * len(case.faults))

  def test_a_death_in_a_step_of_one_microbatch(self):
    trials, case = read("1,0/1,3 mode=lazy", "2x1x1")
    self.assertEqual(trials.run(case).rungs, ("shadow",))

  @parameterized.parameters(
      # Nobody who is left of the first pipeline has the last stage.
      ("1,0/0,3 1,0/1,6 2,0/1,2 spares=0", "2x2x2", "reroute"),
      ("1,0/1,3 mode=none", "2x2x1", "checkpoint"),
      ("1,0/1,3 1,0/0,reduce", "2x2x1", "checkpoint"),
  )
  def test_a_stage_without_a_copy(self, words, size, rung):
    trials, case = read(words, size)
    self.assertIn(rung, trials.run(case).rungs)

  def test_a_pipeline_is_left_out(self):
    changes = "spares=0 mode=none recovery__drop=True recovery__reroute=False"
    trials, case = read(f"1,0/0,3 {changes}", "2x2x2")
    worker = trials.begin(case.faults, workdir_path=self.folder)
    worker.run(stop_at=4)
    lines = jsonl.read_lines(self.folder / "metrics.jsonl")
    self.assertEqual([l["rung"] for l in lines if l.get("event") == "recovery"], ["drop"])

  def test_blocks_stay_whole(self):
    config = accept.accept(make_config())
    task = build.make_task(config)
    cuts = build.find_cuts(config, task)
    self.assertEqual(cuts, (3,))
    plan = build.make_plan(config, build.make_profile(config, task), cuts=cuts)
    self.assertEqual(plan.partition.bounds, (0, 3, 6))

  def test_either_executor_resumes_what_the_other_has_saved(self):
    faults = self.folder / "faults.csv"
    faults.write_text("step,node,at,kind\n1,0/0,3,kill\n")
    config = make_config(
        checkpoint__every_steps=2,
        evaluate__every_steps=3,
        evaluate__num_microbatches=2,
        num_steps=3,
    )
    take = lambda config: trials_lib.share(config, small.make_task())
    self.enterContext(mock.patch.object(job_lib, "take", take))
    run.train_and_evaluate(config, workdir=str(self.folder), faults=str(faults))
    lines = jsonl.read_lines(self.folder / "metrics.jsonl")
    # A program does not tell when its passes run.
    self.assertEqual(jsonl.column(lines, "bubble_pct")[0], ())
    self.assertEqual(jsonl.column(lines, "loss", event="eval")[0], (3,))
    self.assertLen([line for line in lines if line.get("event") == "recovery"], 1)

    config.num_steps = 4
    config.pipeline.executor = "rows"
    run.train_and_evaluate(config, workdir=str(self.folder))
    lines = jsonl.read_lines(self.folder / "metrics.jsonl")
    self.assertEqual(jsonl.column(lines, "bubble_pct")[0], (4,))
    want = read(executor="rows")[0].want(4).losses
    np.testing.assert_allclose(jsonl.column(lines, "loss")[1], want, rtol=1e-5)
