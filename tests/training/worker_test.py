"""Steps in which nodes die, come or leave end as without, to the bit.

The worker is that of clusters, on a cohort of one member; `bamboo verify` runs all deaths.
"""

import contextlib
import gc
from unittest import mock

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import digest
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime import engine as engine_lib, node as node_lib, program_store
from bamboo_jax.runtime.phases import reduce
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.training import (
    background_compiler,
    cohort as cohort_lib,
    step as step_lib,
    worker as worker_lib,
)
from bamboo_jax.verify import cases, trials as trials_lib
from tests import folders, samples
from tests.verify import small

_UNEVEN = dict(num_shares=4, spares=1, pipeline__layout="templates")
_TWO_AT_ONCE = ("both_pipelines", (2, 2, 2), "1,0/0,3 1,1/1,5")
_SEVERAL = (
    ("one_stage", (2, 2, 2), "1,0/1,reduce 1,1/1,reduce"),
    ("in_phases", (2, 2, 2), "1,0/0,norm 1,1/0,apply"),
    ("apart_at_once", (4, 2, 1), "1,0/1,refresh 1,0/3,refresh"),
    ("second_in_the_recovery", (4, 2, 1), "1,0/3,3 1,0/1,7"),
    ("second_in_the_reduction", (4, 2, 1), "1,0/2,2 1,0/0,reduce"),
    ("second_after_the_commit", (4, 2, 1), "1,0/2,vote 1,0/0,apply"),
    ("owner_of_two_stages", (4, 2, 1), "1,0/1,5 2,0/1,9"),
    ("owner_of_two_stages_later", (4, 2, 1), "1,0/0,5 3,0/0,vote"),
    ("one_node_is_left", (4, 2, 1), "1,0/1,5 2,0/0,0 3,0/2,ties"),
)
_RUNGS = (
    ("other_pipelines", (2, 2, 2), "1,1/0,3 1,1/1,3", {}, ["reroute"]),
    ("no_shadows", (2, 2, 2), "1,0/1,vote", {"mode": "none"}, ["reroute"]),
    (
        "new_pipelines",
        (2, 2, 2),
        "1,0/1,4",
        {"mode": "none", "recovery__reroute": False},
        ["reconfigure"],
    ),
    # What is left of a pipeline still has its stages, after the update too.
    ("both", (2, 2, 2), "1,0/1,3 1,1/0,5", {"mode": "none"}, ["reroute"]),
    (*("after_update", (2, 2, 2), "1,0/1,3 1,1/0,apply"), *({"mode": "none"}, ["reroute"])),
    (*("both_with_replicas", (3, 2, 2)), *("1,1/2,1 1,1/1,3 1,0/1,1 1,0/0,5", {}, ["reroute"])),
    # The only share of a pipeline is computed by an owner of the other.
    ("a_share", (2, 2, 2), "1,1/0,3", {}, ["shadow"]),
    (*("lost_stages", (3, 2, 2), "1,0/1,3 1,0/2,4 2,0/0,5"), *({}, ["reroute"])),
    ("checkpoint", (4, 2, 1), "2,0/1,5 2,0/2,5", {}, ["checkpoint"]),
    ("nothing_held", (4, 2, 1), "2,0/3,0", {"mode": "none"}, ["checkpoint"]),
    ("all_die", (2, 2, 1), "2,,,all", {}, ["checkpoint"]),
)
_UNEVEN_DEATHS = ("two_at_once", "1,0/1,3 1,1/1,reduce", {}, [3])
_SHAPES = (
    # By the rules of Oobleck a pipeline borrows from the other.
    ("rules", "1,1/0,5", {"recovery__method": "rules"}, [2, 2]),
    ("a_newcomer", "1,0/1,5 2,,,join", {}, [2, 3]),
    ("one_after_the_other", "1,0/0,3 2,1/1,apply", {}, [3]),
    ("down_to_two", "1,0/0,3 2,0/1,4 3,0/1,refresh", {}, [2]),
    ("who_leaves", "1,0/1,,notice", {}, [2, 2]),
    ("a_lost_pipeline", "1,0/1,3 1,0/0,4", {}, [3]),
    ("a_lost_stage", "1,0/0,3 1,0/1,6 2,,,join", {}, [2, 2]),
)


def shape_of(outcome):
  """Returns how many nodes each pipeline has."""
  return sorted(len({*row}) for row in outcome.owners)


class DeathsTest(folders.FolderCase):

  @parameterized.named_parameters(
      ("two_stages", (2, 2, 1), 2, {}),
      ("two_pipelines", (2, 2, 2), 4, {}),
      ("four_stages", (4, 2, 1), 4, {}),
      ("lazy", (4, 2, 1), 9, {"mode": "lazy"}),
      ("state", (2, 2, 1), 9, {"refresh": "state"}),
      ("host", (2, 2, 1), 9, {"slots": "host"}),
      # Of three stages and of two.
      ("uneven", (2, 4, 2), 9, _UNEVEN),
      ("uneven_by_state", (2, 4, 2), 9, {"refresh": "state", **_UNEVEN}),
      ("uneven_without_replicas", (2, 4, 2), 9, {"mode": "none", **_UNEVEN}, "reroute"),
  )
  def test_one(self, size, every, changes, rung="shadow"):
    trials = small.make_trials(*size, **changes)
    deaths = cases.single_deaths(trials.steps, every=every)
    corners = [deaths[0], deaths[-1]]
    for case in [*corners, *samples.draw(deaths[1:-1], 1, topic=f"{size} {changes}")]:
      with self.subTest(str(case)):
        self.assertEqual(trials.run(case).rungs, (rung,))

  @parameterized.named_parameters(_TWO_AT_ONCE, *samples.draw(_SEVERAL, 1))
  def test_some(self, size, text):
    outcome = small.make_trials(*size).run(small.make_case(text))
    self.assertEqual({*outcome.rungs}, {"shadow"})

  def test_in_mid_step_no_node_under_notice_gets_a_stage_if_a_spare_can(self):
    trials = small.make_trials(2, 2, 1, spares=2, mode="none")
    faults = small.make_case("2,n2,,notice 2,0/0,vote").faults
    worker = trials.begin(faults, workdir_path=self.folder)
    engine = worker.engine
    with mock.patch.object(engine, "set_pipelines", wraps=engine.set_pipelines) as given:
      worker.run(stop_at=4)
    self.assertEqual({n for c in given.call_args_list for n in c.args[0][0]}, {0, 1, 3})

  def test_a_spare_dies_and_nobody_has_kept_what_was_on_its_way(self):
    trials = small.make_trials(3, 4, 1, spares=1, mode="none")
    case = small.make_case("2,n3,,kill")
    for delay in samples.draw(range(16, 40, 3), 1):  # Checks of the cohort.
      with (
          self.subTest(delay),
          mock.patch.object(cohort_lib.random.Random, "randint", lambda *_, at=delay: at),
      ):
        self.assertEqual(trials.run(case).rungs, ())

  def test_any_time(self):
    for text in ("2,0/1,,kill", "2,n3,,node", "2,,,leader", "2,1/0,,stop"):
      with self.subTest(text):
        outcome = small.make_trials(2, 2, 2).run(small.make_case(text))
        self.assertEqual(outcome.rungs, ("shadow",))


class RetractedTest(folders.FolderCase):

  def test_what_was_made_of_ones_is_not_used_after_a_death(self):
    """As of a member that is killed before it votes, so its data are read again."""
    trials = small.make_trials(2, 2, 1)
    case = small.make_case("1,0/1,5")
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
    self.assertEqual(digest.digest_layers(worker.engine.layer_states(0)).state, wanted)
    taken.assert_called_once()


class JoinsTest(parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_the_time_of_a_wait_for_others_to_join(self, dies):
    worker = object.__new__(worker_lib.Worker)
    step, clock = mock.Mock(idle_secs=1.0), mock.Mock(perf_counter=lambda: 2.0)

    def wait(num):
      clock.perf_counter = lambda: num + 2.0
      if dies:
        raise base.ViewChangedError("n1 died")

    cohort = mock.Mock(wait_members=wait, strike=lambda due: False)
    cohort.view.members = "abc"
    worker._step, worker._cohort, worker._compiler = step, cohort, mock.Mock()
    worker._journal, worker.state = mock.Mock(), mock.Mock(steps=3)
    worker._deaths = mock.Mock()
    joins = [faults_lib.Fault(4, "", kind="join")] * 2
    worker._given = mock.Mock(faults=joins)
    with mock.patch.object(worker_lib, "time", clock), contextlib.suppress(base.ViewChangedError):
      worker._wait_for_joins()
    self.assertEqual(step.idle_secs, 1.0 + 5.0)
    worker._deaths.excuse.assert_called_once_with(4, 5.0)


class LadderTest(parameterized.TestCase):

  @parameterized.named_parameters(*samples.draw(_RUNGS, 3))
  def test_rung(self, size, text, changes, rungs):
    outcome = small.make_trials(*size, **changes).run(small.make_case(text))
    self.assertEqual(list(outcome.rungs)[-1:], rungs)

  def test_a_newcomer_takes_the_place(self):
    outcome = small.make_trials(4, 2, 1).run(small.make_case("1,0/2,5 2,,,join 4,0/0,2"))
    self.assertEqual(outcome.rungs, ("shadow", "shadow"))
    self.assertIn(4, outcome.owners[0])

  def test_a_newcomer_for_whom_training_waits(self):
    changes = dict(mode="none", pipeline__layout="templates", recovery__fold=False)
    trials = small.make_trials(2, 2, 1, **changes)
    for text in ("1,0/1,3,node 3,,,join", "1,0/0,5,kill 2,,,join 3,,,join"):
      with self.subTest(text):
        outcome = trials.run(small.make_case(text))
        self.assertEqual(outcome.rungs, ("wait", "checkpoint"))

  def test_who_will_be_preempted_hands_over(self):
    case = small.make_case("1,0/1,,notice 3,0/3,5")
    outcome = small.make_trials(4, 2, 1, spares=1).run(case)
    self.assertEqual(outcome.rungs, ("shadow",))
    self.assertNotIn(1, outcome.owners[0])

  def test_collections_are_short_while_it_trains(self):
    counts, begin = [], step_lib.StepRunner.begin

    def watch(*args):
      counts.append(gc.get_freeze_count())
      begin(*args)

    with mock.patch.object(step_lib.StepRunner, "begin", watch):
      small.make_trials(2, 2, 1).run(small.make_case("1,0/1,3"))
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

  @parameterized.named_parameters(_UNEVEN_DEATHS, *samples.draw(_SHAPES, 1))
  def test_shapes(self, text, changes, shape):
    outcome = small.make_trials(2, 4, 2, **_UNEVEN | changes).run(small.make_case(text))
    self.assertEqual(shape_of(outcome), shape)

  @parameterized.named_parameters(
      ("others", "none", "1,0/0,3 1,1/1,4 2,0/0,vote 3,0/1,5", [2]),
      (*("until_one_joins", "lazy"), *("1,0/1,3 1,0/2,4 1,1/0,5 1,1/1,reduce 3,,,join", [3])),
  )
  def test_few_nodes_fold(self, mode, text, shape):
    trials = small.make_trials(3, 4, 2, num_shares=4, pipeline__layout="templates", mode=mode)
    outcome = trials.run(small.make_case(text))
    self.assertEqual(shape_of(outcome), shape)

  def test_nothing_is_compiled(self):
    trials = small.make_trials(2, 4, 2, **_UNEVEN | {"num_shares": 8})
    storm = cases.Storm(num_events=8, at_once=2, seed=0)
    with mock.patch.object(program_store.use(), "folder", None):
      trials.run(storm)
    self.assertLen(storm.faults, 8)
    self.assertEqual(storm.num_compiled, 0)


class BrokenTest(parameterized.TestCase):
  """Each of these breaks something on purpose, which must be noticed."""

  def test_skipped_backward_pass(self):
    run = node_lib.Node.run
    skipped = instruction_lib.Instruction(0, instruction_lib.Op.BACKWARD, 1)

    def skip(node, instruction):
      if node.node == 3 and instruction == skipped:
        return node.store.accumulators[0, 0].stats
      return run(node, instruction)

    with mock.patch.object(node_lib.Node, "run", skip):
      with self.assertRaises(trials_lib.TroubleError):
        small.make_trials(4, 2, 1).run(small.make_case("1,0/0,4"))

  def test_wrong_order_of_shares(self):
    trials = small.make_trials(2, 4, 1, num_shares=4)
    case, add = small.make_case("1,0/1,4"), reduce._add_up
    trials.run(case)

    def add_backwards(engine, channel, parts, **options):
      return add(engine, channel, dict(reversed(parts.items())), **options)

    with mock.patch.object(reduce, "_add_up", add_backwards):
      with self.assertRaises(trials_lib.TroubleError):
        trials.run(case)

  # The death of a virtual node must not be less than that of a real one.
  @parameterized.parameters("5", "vote", "apply")
  def test_arrays_of_the_dead_are_gone(self, at):
    held, kill = [], engine_lib.Engine.kill

    def watch(engine, number):
      node = engine.nodes[number]
      held.extend(jax.tree.leaves([[*node.state.values()], node.store.arrays()]))
      kill(engine, number)

    with mock.patch.object(engine_lib.Engine, "kill", watch):
      small.make_trials(4, 2, 1, num_shares=2).run(small.make_case(f"1,0/2,{at}"))
    self.assertNotEmpty(held)
    self.assertTrue(all(array.is_deleted() for array in held))
