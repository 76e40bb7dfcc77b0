"""A run that is told to end, or whose copies all vanish soon, saves before."""

import dataclasses
import math

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays as layer_arrays, manifest
from bamboo_jax.training.record import workdir as workdir_lib
from tests.training import script_test

# Notices: to all nodes, and to that with the only copy of a stage.
_ALL, _ONLY = "1,0/0,3,notice 1,0/1,5,notice", "1,0/1,3,notice"


class EndingCase(script_test.ScriptCase):

  def begin(self, words="", size="2x2x1", script=None):
    """Returns a worker; nothing is saved of itself."""
    return super().begin(script or {}, f"{size} num_steps=6 {words}")

  def saved(self):
    """Returns the steps that are saved, in order."""
    return [name.step for name in manifest.find(self.folder / "checkpoints")]

  def stop_in(self, worker, step):
    """Has the run asked to end while `step`, from 0, is under way."""
    object.__setattr__(worker._given, "stops", lambda: worker.state.steps >= step)


class StopTest(EndingCase):

  # Step in which it is asked, the last step saved, and those evaluated.
  @parameterized.parameters((2, 2, []), (3, 4, [2]))
  def test_an_evaluation_ends_with_the_run(self, step, saved, evaluated):
    """The step before it is saved, and no mean of a part is logged."""
    worker = self.begin("evaluate__every_steps=2")
    self.stop_in(worker, step)
    self.assertFalse(worker.run())
    self.assertEqual((worker.state.steps, self.saved()), (saved, [saved]))
    self.assertEqual([line["step"] for line in self.lines("eval")], evaluated)

  @parameterized.parameters((0, ""), (2, ""), (2, "2,0/1,5"), (2, "2,0/1,apply"), (5, ""))
  def test_the_step_is_finished_and_saved(self, step, text):
    worker = self.begin(text, size="2x2x2")
    self.stop_in(worker, step)
    self.assertEqual(worker.run(), step == 5)
    done = worker.state.steps
    # What not all may have heard is asked again in the next step.
    self.assertEqual(done, step + 1 + ("apply" in text))
    self.assertEqual(self.saved(), [done])
    self.assertEqual(workdir_lib.find_saved(str(self.folder)), done)
    again = self.begin(size="2x2x2")
    self.assertTrue(again.run())
    self.assertEqual(again.first_step, done)
    got = layer_arrays.digest(again.engine.layer_states())
    self.assertEqual(got, self.trials.want(6).layers[0])

  @parameterized.parameters((0, 0), (2, 2), (9, 6), (None, 6))
  def test_stops_at(self, step, want):
    worker = self.begin()
    self.assertEqual(worker.run(stop_at=step), want == 6)
    self.assertEqual(worker.state.steps, want)

  def test_asked_before_it_trains(self):
    self.begin()
    self.assertFalse(self.local.ask_to_stop())
    self.assertFalse(self.local.is_asked_to_stop)
    self.local.enter()
    self.assertTrue(self.local.ask_to_stop())
    self.assertTrue(self.local.is_asked_to_stop)

  def test_nothing_is_saved(self):
    self.assertEqual(workdir_lib.find_saved(str(self.folder / "none")), 0)
    (self.folder / "checkpoints" / "4" / "v1.1-ab").mkdir(parents=True)
    self.assertEqual(workdir_lib.find_saved(str(self.folder)), 0)


class SkippedTest(EndingCase):
  """Skipped steps in a row: they end the run, and cost no good checkpoint."""

  def begin(self, words="", *, poisoned=()):

    def poison(said):
      _, weight = said[0].loss
      return {0: dataclasses.replace(said[0], loss=(math.nan, weight))}

    script = {f"sums {step - 1}": [poison] * 9 for step in poisoned}
    changes = "checkpoint__every_steps=2 checkpoint__keep=1 optimizer__most_skipped_steps=3"
    return super().begin(f"{changes} {words}", script=script)

  @parameterized.parameters("", "5,0/1,3 6,,,join spares=1", "5,,,all", "5,0/0,vote refresh=state")
  def test_too_many_end_the_run(self, words):
    worker = self.begin(f"num_steps=20 {words}", poisoned=range(5, 20))
    with self.assertRaisesRegex(
        base.NonFiniteError,
        "^Training stops at step 7: all steps after step 4 were skipped .*loss"
        "=nan .*. Checkpoints up to step 4 are from before.$",
    ):
      worker.run()
    self.assertEqual(worker.state.steps, 6)
    self.assertEqual(self.saved(), [4])

  def test_what_is_due_is_saved_at_the_next_good_step(self):
    worker = self.begin("checkpoint__keep=9", poisoned=(2, 4, 5))
    self.assertTrue(worker.run())
    self.assertEqual(self.saved(), [3, 6])

  def test_one_that_ends_there_is_saved_beside_the_good_one(self):
    worker = self.begin(poisoned=(3, 4))
    self.stop_in(worker, 3)
    self.assertFalse(worker.run())
    self.assertEqual(self.saved(), [2, 4])
    again = self.begin(poisoned=(5,))
    with self.assertRaisesRegex(base.NonFiniteError, "all steps after step 2 "):
      again.run()
    self.assertEqual(self.saved(), [2, 4])
    self.assertTrue(self.begin().run())
    self.assertEqual(self.saved(), [6])


class AtRiskTest(EndingCase):

  @parameterized.parameters(
      (_ALL, 0.0, [2], "^[0-9.]+ MiB of the state are only on n0, n1, to be preempted; "),
      (_ONLY, 1e9, [2], "^[0-9.]+ MiB of the state are only on n1, to be preempted; .* are left$"),
      (_ALL, 1.0, [2], "^[0-9.]+ MiB .* n0, n1, .* not fit"),
      (_ONLY, 1.0, [], "^not yet, .*: [0-9.]+ MiB .* n1, "),  # The other, or a spare, has it.
      (f"{_ONLY} spares=1", 1.0, [], "^not yet, .*: [0-9.]+ MiB .* n1, "),
      ("4,0/1,3,notice", 0.0, []),  # It is stopped there.
      (f"{_ONLY} mode=lazy", 0.0, []),  # Another has a copy.
      ("1,n2,,notice spares=1", 0.0, []),
  )
  def test_notice(self, words, bytes_per_sec, saved, *told):
    worker = self.begin(f"mode=none {words}")
    worker.state.writer.rate = bytes_per_sec
    worker.run(stop_at=5)
    self.assertEqual(self.saved(), saved)
    self.assertEqual(worker.state.steps, 5)  # It has gone on.
    for line, text in zip(self.lines("saving"), told, strict=True):
      self.assertRegex(line["reason"], text)

  def test_the_run_ends_in_the_evaluation_after_that_save(self):
    worker = self.begin(f"mode=none evaluate__every_steps=2 {_ALL}")
    self.stop_in(worker, 2)
    self.assertFalse(worker.run())
    self.assertEqual((worker.state.steps, self.saved()), (2, [2]))

  def test_a_save_that_fails_ends_nothing(self):
    worker = self.begin(f"mode=none {_ALL}")

    def fail(*args, **options):
      raise OSError(28, "No space left on device")

    worker._writer._folder.write_part = fail
    worker.run(stop_at=5)
    self.assertEqual(self.saved(), [])
    self.assertIn("No space left", self.lines("save_failed")[0]["reason"])
