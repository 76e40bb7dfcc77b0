"""A run that is told to end, or whose copies all vanish soon, saves before."""

import dataclasses
import math

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.checkpoint import digest, manifest, parts
from bamboo_jax.training.record import workdir as workdir_lib
from tests.training import script_test


class EndingCase(script_test.ScriptCase):

  def begin(self, text="", size=(2, 2, 1), script=None, **changes):
    """Returns a worker; nothing is saved of itself."""
    return super().begin(script or {}, size, text, **{"num_steps": 6} | changes)

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
    worker = self.begin(size=(2, 2, 1), evaluate__every_steps=2)
    self.stop_in(worker, step)
    self.assertFalse(worker.run())
    self.assertEqual((worker.state.steps, self.saved()), (saved, [saved]))
    self.assertEqual([line["step"] for line in self.lines("eval")], evaluated)

  @parameterized.named_parameters(
      ("at_once", 0, ""),
      ("later", 2, ""),
      ("after_a_death_in_the_step", 2, "2,0/1,5"),
      ("with_a_death_after_the_votes", 2, "2,0/1,apply"),
      ("in_the_last_step", 5, ""),
  )
  def test_the_step_is_finished_and_saved(self, step, text):
    worker = self.begin(text, size=(2, 2, 2))
    self.stop_in(worker, step)
    self.assertEqual(worker.run(), step == 5)
    done = worker.state.steps
    # What not all may have heard is asked again in the next step.
    self.assertEqual(done, step + 1 + ("apply" in text))
    self.assertEqual(self.saved(), [done])
    self.assertEqual(workdir_lib.find_saved(str(self.folder)), done)
    again = self.begin(size=(2, 2, 2))
    self.assertTrue(again.run())
    self.assertEqual(self.local.first_step, done)
    got = digest.digest_layers(again.engine.layer_states()).state
    self.assertEqual(got, self.trials.want(6).layers[0])

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

  def begin(self, text="", *, poisoned=(), **changes):

    def poison(said):
      _, weight = said[0].loss
      return {0: dataclasses.replace(said[0], loss=(math.nan, weight))}

    script = {f"sums {step - 1}": [poison] * 9 for step in poisoned}
    changes = {"checkpoint__every_steps": 2, "checkpoint__keep": 1} | changes
    changes = {"optimizer__most_skipped_steps": 3} | changes
    return super().begin(text, script=script, **changes)

  @parameterized.named_parameters(
      ("calm", "", {}),
      ("deaths", "5,0/1,3 6,,,join", {"spares": 1}),
      ("after_a_commit", "5,0/1,apply", {}),
      ("all_return_to_a_checkpoint", "5,,,all", {}),
      ("whole_stages", "5,0/0,vote", {"refresh": "state"}),
  )
  def test_too_many_end_the_run(self, text, changes):
    worker = self.begin(text, num_steps=20, poisoned=range(5, 20), **changes)
    with self.assertRaisesRegex(
        base.NonFiniteError,
        "^Training stops at step 7: all steps after step 4 were skipped .*loss"
        "=nan .*. Checkpoints up to step 4 are from before.$",
    ):
      worker.run()
    self.assertEqual(worker.state.steps, 6)
    self.assertEqual(self.saved(), [4])

  def test_what_is_due_is_saved_at_the_next_good_step(self):
    worker = self.begin(poisoned=(2, 4, 5), checkpoint__keep=9)
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

  def test_none_end_it(self):
    poisoned = range(1, 7)
    worker = self.begin(poisoned=poisoned, optimizer__most_skipped_steps=0)
    self.assertTrue(worker.run())
    self.assertEqual(self.saved(), [6])


class AtRiskTest(EndingCase):

  @parameterized.named_parameters(
      ("all", "1,0/0,3,notice 1,0/1,5,notice", {}, [2]),
      ("both", "1,0/0,3,notice 3,0/1,5,notice", {"mode": "lazy"}, [4]),
      ("the_only_copy", "1,0/1,3,notice", {}, [2]),
      ("the_last_step", "4,0/1,3,notice", {}, []),  # It is stopped there.
      ("another_has_a_copy", "1,0/1,3,notice", {"mode": "lazy"}, []),
      ("a_spare", "1,n2,,notice", {"spares": 1}, []),
  )
  def test_notice(self, text, changes, saved):
    worker = self.begin(text, **{"mode": "none"} | changes)
    worker.run(stop_at=5)
    self.assertEqual(self.saved(), saved)
    self.assertEqual(worker.state.steps, 5)  # It has gone on.

  @parameterized.named_parameters(
      ("in_time", "1,0/1,3,notice", 1e9, {}, [2], "^only n1, to be preempted, have .* are left$"),
      ("all_leave", "1,0/0,3,notice 1,0/1,5,notice", 1.0, {}, [2], "^only n0, n1, .* not fit"),
      ("the_other_can", "1,0/1,3,notice", 1.0, {}, [], "^not yet, .*: only n1, "),
      ("a_spare_can", "1,0/1,3,notice", 1.0, {"spares": 1}, [], "^not yet, .*: only n1, "),
  )
  def test_what_fits_is_told_before(self, text, bytes_per_sec, changes, saved, told):
    worker = self.begin(text, mode="none", **changes)
    worker.state.writer.rate = parts.Upload(int(bytes_per_sec), 1.0)
    worker.run(stop_at=5)
    self.assertEqual(self.saved(), saved)
    (line,) = self.lines("saving")
    self.assertRegex(line["reason"], told)

  def test_a_save_that_fails_ends_nothing(self):
    worker = self.begin("1,0/0,3,notice 1,0/1,5,notice", mode="none")

    def fail(*args, **options):
      raise OSError(28, "No space left on device")

    worker._writer._folder.write_part = fail
    worker.run(stop_at=5)
    self.assertEqual(self.saved(), [])
    self.assertIn("No space left", self.lines("save_failed")[0]["reason"])
