"""Pipelines of unequal depth: the same bits, no idle node, nothing compiled.

Five nodes make pipelines of three and two stages; the model has four units.
"""

from unittest import mock

from absl.testing import parameterized

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime import program_store
from bamboo_jax.training import background_compiler
from bamboo_jax.verify import cases
from tests import samples
from tests.verify import small

_TWO_AT_ONCE = ("two_at_once", "1,0/1,3 1,1/1,reduce", {}, [3])
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


def make_trials(**changes):
  """Returns trials of pipelines made of templates."""
  options = dict(num_shares=4, spares=1, pipeline__layout="templates")
  return small.make_trials(2, 4, 2, **options | changes)


def shape_of(outcome):
  """Returns how many nodes each pipeline has."""
  return sorted(len({*row}) for row in outcome.owners)


class DeathsTest(parameterized.TestCase):

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

  def test_first_layout(self):
    trials = make_trials()
    self.assertEqual(sorted(trials.steps.depths), [2, 3])
    self.assertEqual(shape_of(trials.run(cases.Case(()))), [2, 3])

  @parameterized.named_parameters(
      ("eager", {}, "shadow"),
      ("state", {"refresh": "state"}, "shadow"),
      ("none", {"mode": "none"}, "reroute"),
  )
  def test_in_every_phase(self, changes, rung):
    trials = make_trials(**changes)
    depths = trials.steps.depths
    places = [f"{p}/{s}" for p, n in enumerate(depths) for s in range(n)]
    points = (1, 4, 9, *faults_lib.PHASES)
    first, *others, last = enumerate(points)
    for i, point in (first, *samples.draw(others, 1, topic=rung), last):
      case = small.make_case(f"1,{places[i % len(places)]},{point}")
      with self.subTest(str(case)):
        outcome = trials.run(case)
        self.assertEqual(outcome.rungs, (rung,))
        self.assertEqual(shape_of(outcome), [2, 2])

  def test_without_replicas_what_was_sent_is_kept(self):
    trials = small.make_trials(3, 4, 2, mode="none")
    for point in samples.draw((6, 8, 10, 12), 1):
      with self.subTest(point):
        outcome = trials.run(small.make_case(f"1,0/1,{point}"))
        self.assertEqual(outcome.rungs, ("reroute",))

  @parameterized.named_parameters(_TWO_AT_ONCE, *samples.draw(_SHAPES, 1))
  def test_shapes(self, text, changes, shape):
    self.assertEqual(shape_of(make_trials(**changes).run(small.make_case(text))), shape)


class FoldTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("shadows", "lazy", "1,0/1,3 1,0/2,4 1,1/0,5 1,1/1,reduce", [2]),
      ("others", "none", "1,0/0,3 1,1/1,4 2,0/0,vote 3,0/1,5", [2]),
      (*("until_one_joins", "lazy"), *("1,0/1,3 1,0/2,4 1,1/0,5 1,1/1,reduce 3,,,join", [3])),
  )
  def test_few_nodes_fold(self, mode, text, shape):
    trials = small.make_trials(3, 4, 2, num_shares=4, pipeline__layout="templates", mode=mode)
    outcome = trials.run(small.make_case(text))
    self.assertEqual(shape_of(outcome), shape)


class StormTest(parameterized.TestCase):

  def test_nothing_is_compiled(self):
    trials = make_trials(num_shares=8)
    storm = cases.Storm(num_events=8, at_once=2, seed=0)
    with mock.patch.object(program_store.use(), "folder", None):
      trials.run(storm)
    self.assertLen(storm.faults, 8)
    self.assertEqual(storm.num_compiled, 0)
