"""Pipelines of unequal depth: the same bits, no idle node, nothing compiled.

Five nodes make pipelines of three and two stages; the model has four units.
"""

import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime.executables import store
from bamboo_jax.train import background_compiler
from tests.fault_sweep import cases
from tests.fault_sweep import small


def setUpModule():
  jax.devices()  # Now there are 8, however few a run asks for.


def make_trials(**changes):
  """Returns trials of pipelines made of templates."""
  options = dict(num_shares=4, spares=1, pipeline__layout="templates")
  return small.make_trials(2, 4, 2, **options | changes)


def shape_of(outcome):
  """Returns how many nodes each pipeline has."""
  return sorted(len({*row}) for row in outcome.owners)


class DeathsTest(parameterized.TestCase):

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
    for i, point in enumerate(points):
      case = small.make_case(f"1,{places[i % len(places)]},{point}")
      with self.subTest(str(case)):
        outcome = trials.run(case)
        self.assertEqual(outcome.rungs, (rung,))
        self.assertEqual(shape_of(outcome), [2, 2])

  @parameterized.named_parameters(
      # By the rules of Oobleck a pipeline borrows from the other.
      ("rules", "1,1/0,5", {"recovery__method": "rules"}, [2, 2]),
      ("a_newcomer", "1,0/1,5 2,,,join", {}, [2, 3]),
      ("two_at_once", "1,0/1,3 1,1/1,reduce", {}, [3]),
      ("one_after_the_other", "1,0/0,3 2,1/1,apply", {}, [3]),
      ("down_to_two", "1,0/0,3 2,0/1,4 3,0/1,refresh", {}, [2]),
      ("who_leaves", "1,0/1,,notice", {}, [2, 2]),
      ("a_lost_pipeline", "1,0/1,3 1,0/0,4", {}, [3]),
  )
  def test_shapes(self, text, changes, shape):
    self.assertEqual(
        shape_of(make_trials(**changes).run(small.make_case(text))), shape
    )


class CompilationTest(absltest.TestCase):

  def test_new_shapes_compile_nothing(self):
    # Sums of 5 and 3 shares are other programs than those of 4 and 4.
    trials = make_trials(num_shares=8)
    programs, waited_for = store.use(), []
    close = background_compiler.BackgroundCompiler.close

    def wait_and_close(compiler):
      compiler.wait()
      close(compiler)

    with mock.patch.object(
        background_compiler.BackgroundCompiler, "close", wait_and_close
    ):
      trials.run(cases.Case(()))
    compile_one = store.Store._compile

    def note(self, *args):
      name = threading.current_thread().name
      if not name.startswith("compiler"):  # Beside training.
        waited_for.append(name)
      return compile_one(self, *args)

    with (
        mock.patch.object(programs, "folder", None),
        mock.patch.object(store.Store, "_compile", note),
    ):
      trials.run(small.make_case("1,0/1,3 2,,,join 3,1/0,4"))
      self.assertEmpty(waited_for)
      jax.jit(lambda a: a + 47)(1.0)  # It does note.
      self.assertNotEmpty(waited_for)


if __name__ == "__main__":
  absltest.main()
