"""Steps in which nodes die, come or leave end as without, to the bit.

The worker is that of clusters, on a cohort of one member; `bamboo verify` runs all deaths.
"""

import gc
from unittest import mock

from absl.testing import absltest, parameterized
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime import engine as engine_lib, program_store
from bamboo_jax.runtime.phases import reduce
from bamboo_jax.training import (
    background_compiler,
    cohort as cohort_lib,
    step as step_lib,
    worker as worker_lib,
)
from bamboo_jax.verify import cases, trials as trials_lib
from tests import folders, samples, tables
from tests.verify import small

# Runs, see `small.read`, and the last rung. Of uneven pipelines one has three stages, one two.
_UNEVEN = "2x4x2 num_shares=4 spares=1 pipeline__layout=templates"
_ONE_DEATH = f"""
2x2x1 every=2
  shadow
2x2x2 every=4
  shadow
4x2x1 every=4
  shadow
4x2x1 mode=lazy
  shadow
2x2x1 refresh=state
  shadow
2x2x1 slots=host
  shadow
{_UNEVEN}
  shadow
{_UNEVEN} refresh=state
  shadow
{_UNEVEN} mode=none
  reroute
"""
_SEVERAL = """
2x2x2 1,0/1,reduce 1,1/1,reduce
2x2x2 1,0/0,norm 1,1/0,apply
4x2x1 1,0/1,refresh 1,0/3,refresh
4x2x1 1,0/3,3 1,0/1,7
4x2x1 1,0/2,2 1,0/0,reduce
4x2x1 1,0/2,vote 1,0/0,apply
4x2x1 1,0/1,5 2,0/1,9
4x2x1 1,0/0,5 3,0/0,vote
4x2x1 1,0/1,5 2,0/0,0 3,0/2,ties
"""
# What is left of a pipeline still has its stages, after the update too; the only share of a
# pipeline may be computed by an owner of the other.
_RUNGS = """
2x2x2 1,1/0,3 1,1/1,3
  reroute
2x2x2 1,0/1,vote mode=none
  reroute
2x2x2 1,0/1,4 mode=none recovery__reroute=False
  reconfigure
2x2x2 1,0/1,3 1,1/0,5 mode=none
  reroute
2x2x2 1,0/1,3 1,1/0,apply mode=none
  reroute
3x2x2 1,1/2,1 1,1/1,3 1,0/1,1 1,0/0,5
  reroute
2x2x2 1,1/0,3
  shadow
3x2x2 1,0/1,3 1,0/2,4 2,0/0,5
  reroute
4x2x1 2,0/1,5 2,0/2,5
  checkpoint
4x2x1 2,0/3,0 mode=none
  checkpoint
2x2x1 2,,,all
  checkpoint
"""
# Uneven runs, and how many nodes each pipeline has at the end. By the rules of Oobleck a
# pipeline borrows from the other.
_SHAPES = """
1,1/0,5 recovery__method=rules
  [2, 2]
1,0/1,5 2,,,join
  [2, 3]
1,0/0,3 2,1/1,apply
  [3]
1,0/0,3 2,0/1,4 3,0/1,refresh
  [2]
1,0/1,,notice
  [2, 2]
1,0/1,3 1,0/0,4
  [3]
1,0/0,3 1,0/1,6 2,,,join
  [2, 2]
"""


def shape_of(outcome):
  """Returns how many nodes each pipeline has."""
  return sorted(len({*row}) for row in outcome.owners)


class DeathsTest(folders.FolderCase):

  @parameterized.parameters(*tables.read(_ONE_DEATH))
  def test_one(self, line, rung):
    line, _, every = line.partition(" every=")
    trials, _ = small.read(line)
    deaths = cases.single_deaths(trials.steps, every=int(every or 9))
    corners = [deaths[0], deaths[-1]]
    for case in [*corners, *samples.draw(deaths[1:-1], 1, topic=line)]:
      with self.subTest(str(case)):
        self.assertEqual(trials.run(case).rungs, (rung,))

  @parameterized.parameters(
      "2x2x2 1,0/0,3 1,1/1,5", *samples.draw(_SEVERAL.strip().splitlines(), 1)
  )
  def test_some(self, line):
    self.assertEqual({*small.run(line).rungs}, {"shadow"})

  def test_in_mid_step_no_node_under_notice_gets_a_stage_if_a_spare_can(self):
    trials, case = small.read("2x2x1 2,n2,,notice 2,0/0,vote spares=2 mode=none")
    worker = trials.begin(case.faults, workdir_path=self.folder)
    engine = worker.engine
    with mock.patch.object(engine, "set_pipelines", wraps=engine.set_pipelines) as given:
      worker.run(stop_at=4)
    self.assertEqual({n for c in given.call_args_list for n in c.args[0][0].owners}, {0, 1, 3})

  def test_a_spare_dies_and_nobody_has_kept_what_was_on_its_way(self):
    for delay in samples.draw(range(16, 40, 3), 1):  # Checks of the cohort.
      with (
          self.subTest(delay),
          mock.patch.object(cohort_lib.random.Random, "randint", lambda *_, at=delay: at),
      ):
        self.assertEqual(small.run("3x4x1 2,n3,,kill spares=1 mode=none").rungs, ())

  def test_any_time(self):
    for text in ("2,0/1,,kill", "2,n3,,node", "2,,,leader", "2,1/0,,stop"):
      self.assertEqual(small.run(f"2x2x2 {text}").rungs, ("shadow",))


class RetractedTest(folders.FolderCase):

  def test_what_was_made_of_ones_is_not_used_after_a_death(self):
    """As of a member that is killed before it votes, so its data are read again."""
    trials, case = small.read("2x2x1 1,0/1,5")
    worker = trials.begin(case.faults, workdir_path=self.folder)
    cohort, read = worker._cohort, worker._data.microbatch
    is_wrong = lambda: worker.state.steps == 1 and cohort.view.number == 1

    def microbatch(*args):
      arrays = read(*args)
      return {k: np.ones_like(a) if is_wrong() else a for k, a in arrays.items()}

    taken = mock.Mock(side_effect=[True])
    with (
        mock.patch.object(worker._data, "microbatch", microbatch),
        mock.patch.object(cohort, "take_retracted", taken),
    ):
      worker.run(stop_at=2)
    wanted = trials.want(2).layers[0]
    self.assertEqual(layer_arrays.digest(worker.engine.layer_states(0)), wanted)
    taken.assert_called_once()


class JoinsTest(absltest.TestCase):

  def test_the_time_of_a_wait_for_others_to_join(self):
    """Also if a node dies meanwhile."""
    worker, clock = mock.Mock(), mock.Mock(perf_counter=iter([2.0, 7.0]).__next__)
    worker._step.record.idle_secs, worker.state.steps = 1.0, 3
    worker._given.faults = [faults_lib.Fault(4, "", kind="join")] * 2
    worker._cohort.view.members, worker._cohort.strike.return_value = "abc", False
    worker._cohort.wait_members.side_effect = base.ViewChangedError("n1 died")
    with mock.patch.object(worker_lib, "time", clock), self.assertRaises(base.ViewChangedError):
      worker_lib.Worker._wait_for_joins(worker)
    self.assertEqual(worker._step.record.idle_secs, 1.0 + 5.0)
    worker._cohort.wait_members.assert_called_once_with(5)
    worker._deaths.excuse.assert_called_once_with(4, 5.0)


class LadderTest(parameterized.TestCase):

  @parameterized.parameters(*samples.draw(tables.read(_RUNGS), 3))
  def test_rung(self, line, rung):
    self.assertEqual(small.run(line).rungs[-1], rung)

  def test_a_newcomer_takes_the_place(self):
    outcome = small.run("4x2x1 1,0/2,5 2,,,join 4,0/0,2")
    self.assertEqual(outcome.rungs, ("shadow", "shadow"))
    self.assertIn(4, outcome.owners[0])

  def test_a_newcomer_for_whom_training_waits(self):
    changes = "mode=none pipeline__layout=templates recovery__fold=False"
    for text in ("1,0/1,3,node 3,,,join", "1,0/0,5,kill 2,,,join 3,,,join"):
      outcome = small.run(f"2x2x1 {text} {changes}")
      self.assertEqual(outcome.rungs, ("checkpoint",))

  def test_who_will_be_preempted_hands_over(self):
    outcome = small.run("4x2x1 1,0/1,,notice 3,0/3,5 spares=1")
    self.assertEqual(outcome.rungs, ("shadow",))
    self.assertNotIn(1, outcome.owners[0])

  def test_collections_are_short_while_it_trains(self):
    counts, begin = [], step_lib.StepRunner.begin

    def watch(*args):
      counts.append(gc.get_freeze_count())
      begin(*args)

    with mock.patch.object(step_lib.StepRunner, "begin", watch):
      small.run("2x2x1 1,0/1,3")
    self.assertGreater(min(counts), 0)
    self.assertEqual(gc.get_freeze_count(), 0)


class UnevenTest(parameterized.TestCase):
  """Five nodes make pipelines of three and of two stages; no node idles."""

  def setUp(self):
    super().setUp()
    find = background_compiler.BackgroundCompiler.newest_ready

    def wait_ready(compiler, failures):
      find(compiler, failures)  # Begins what is missing.
      compiler.wait()
      return find(compiler, failures)

    # Else a layout is left for lack of programs if the machine is busy.
    self.enterContext(
        mock.patch.object(background_compiler.BackgroundCompiler, "newest_ready", wait_ready)
    )

  @parameterized.parameters(("1,0/1,3 1,1/1,reduce", "[3]"), *samples.draw(tables.read(_SHAPES), 1))
  def test_shapes(self, text, shape):
    self.assertEqual(f"{shape_of(small.run(f'{_UNEVEN} {text}'))}", shape)

  @parameterized.parameters(
      ("1,0/0,3 1,1/1,4 2,0/0,vote 3,0/1,5 mode=none", [2]),
      ("1,0/1,3 1,0/2,4 1,1/0,5 1,1/1,reduce 3,,,join mode=lazy", [3]),
  )
  def test_few_nodes_fold(self, text, shape):
    outcome = small.run(f"3x4x2 {text} num_shares=4 pipeline__layout=templates")
    self.assertEqual(shape_of(outcome), shape)

  def test_nothing_is_compiled(self):
    trials, _ = small.read(f"{_UNEVEN} num_shares=8")
    storm = cases.Storm(num_events=8, at_once=2, seed=0)
    with mock.patch.object(program_store.use(), "folder", None):
      trials.run(storm)
    self.assertLen(storm.faults, 8)
    self.assertEqual(storm.num_compiled, 0)


class BrokenTest(parameterized.TestCase):
  """Each of these breaks something on purpose, which must be noticed."""

  def test_wrong_order_of_shares(self):
    line, add = "2x4x1 1,0/1,4 num_shares=4", reduce._add_up
    small.run(line)

    def add_backwards(engine, channel, parts, **options):
      return add(engine, channel, dict(reversed(parts.items())), **options)

    with mock.patch.object(reduce, "_add_up", add_backwards):
      with self.assertRaises(trials_lib.TroubleError):
        small.run(line)

  # The death of a virtual node must not be less than that of a real one.
  @parameterized.parameters("5", "vote", "apply")
  def test_arrays_of_the_dead_are_gone(self, at):
    held, kill = [], engine_lib.Engine.kill

    def watch(engine, number):
      node = engine.nodes[number]
      held.extend(jax.tree.leaves([[*node.state.values()], node.store.arrays()]))
      kill(engine, number)

    with mock.patch.object(engine_lib.Engine, "kill", watch):
      small.run(f"4x2x1 1,0/2,{at} num_shares=2")
    self.assertNotEmpty(held)
    self.assertTrue(all(array.is_deleted() for array in held))
