"""All members conclude the same from the sums of a step."""

import math

from absl.testing import parameterized

from bamboo_jax import base, config as config_lib
from bamboo_jax.training import step as step_lib

_NAN, _INF = math.nan, math.inf


class SumsTest(parameterized.TestCase):

  @parameterized.parameters(
      # Largest norm, then scale of the gradients; their norm is 5.
      (None, 0.5),
      (5.0, 0.5),
      (2.0, 0.2),
  )
  def test_what_members_said(self, clip_norm, scale):
    said = [
        step_lib.LocalSums({1: (36.0,)}, (8.0, 2.0)),
        step_lib.LocalSums({0: (28.0, 36.0)}, None),
        step_lib.LocalSums({0: (28.0, 36.0)}, None),
    ]
    got = step_lib.add_up(said, num_stages=2, clip_norm=clip_norm)
    self.assertEqual(got, step_lib.StepSums(8.0, 2.0, scale, 5.0))
    self.assertEqual(got.mean_loss, 4.0)

  @parameterized.parameters((2.0, (2.0, 0.5)), (0.0, (_NAN, _NAN)))
  def test_means_of_metrics(self, weight, means):
    said = [step_lib.LocalSums({0: (1.0,)}, (8.0, weight, 4.0, 1.0))]
    got = step_lib.add_up(said, num_stages=1, clip_norm=None).metrics
    self.assertEqual(str(got), str(means))

  @parameterized.parameters(None, 1.0)
  def test_no_token_counts(self, clip_norm):
    said = [step_lib.LocalSums({0: (0.0,)}, (0.0, 0.0))]
    got = step_lib.add_up(said, num_stages=1, clip_norm=clip_norm)
    self.assertEqual((got.weight, got.scale), (0.0, 0.0))
    self.assertTrue(math.isnan(got.mean_loss))

  @parameterized.parameters(
      # Loss, weight, norm of the gradient, and what becomes of the step.
      (1.0, 2.0, 3.0, "skip", ""),
      (1.0, 2.0, 3.0, "stop", ""),
      (_NAN, 2.0, 3.0, "skip", "not finite: loss=nan grad_norm=3.0"),
      (-_INF, 2.0, 3.0, "skip", "not finite: loss=-inf grad_norm=3.0"),
      (1.0, 2.0, _INF, "skip", "not finite: loss=1.0 grad_norm=inf"),
      (1.0, 2.0, _NAN, "skip", "not finite: loss=1.0 grad_norm=nan"),
      (_NAN, _NAN, _NAN, "skip", "not finite: loss=nan grad_norm=nan"),
      (_NAN, 2.0, _NAN, "apply", ""),
      (_NAN, 0.0, _NAN, "skip", "no token of the batch counts"),
      (_NAN, 0.0, _NAN, "stop", "no token of the batch counts"),
      (_NAN, 0.0, _NAN, "apply", "no token of the batch counts"),
  )
  def test_judge(self, loss, weight, norm, on_nonfinite, skipped):
    total = step_lib.StepSums(loss * weight, weight, 1.0, norm)
    options = config_lib.OptimizerSection(on_nonfinite=on_nonfinite)
    got = step_lib.judge(6, total, options, num_skipped=0)
    self.assertEqual(got, skipped)

  @parameterized.parameters(
      # Steps in a row that end the run, loss, weight, and skipped steps before
      # step 60, at which it ends.
      (3, _NAN, 2.0, 2, "after step 57 .*=3., .* because not finite: loss=nan"),
      (3, 1.0, 0.0, 2, "after step 57 .*=3., .* because no token of the batch"),
      (1, _NAN, 2.0, 0, "at step 60: all .*Checkpoints up to step 59 are from"),
      (2, _NAN, 2.0, 8, "after step 51 .*=2., "),  # It was larger before.
      (3, _NAN, 2.0, 1, None),
      (0, _NAN, 2.0, 9, None),
      (3, 1.0, 2.0, 2, None),
  )
  def test_skipped_steps_in_a_row(self, most, loss, weight, num, message):
    options = config_lib.OptimizerSection(most_skipped_steps=most)
    total = step_lib.StepSums(loss * weight, weight, 1.0, 1.0)
    judge = lambda: step_lib.judge(59, total, options, num_skipped=num)
    if message is None:
      judge()
      return
    with self.assertRaisesRegex(base.NonFiniteError, message):
      judge()

  @parameterized.parameters((8.0, "samples"), (6.0, "samples"), (9.0, "tokens"), (0.0, "tokens"))
  def test_unit(self, weight, unit):
    self.assertEqual(step_lib.StepSums(1.0, weight, 1.0, 1.0).unit(8), unit)

  @parameterized.parameters((_NAN, 1.0), (1.0, _INF))
  def test_stop(self, loss, norm):
    with self.assertRaisesRegex(
        base.NonFiniteError, f"Step 7 has loss={loss} grad_norm={norm}, so .*"
    ):
      total = step_lib.StepSums(2.0 * loss, 2.0, 1.0, norm)
      options = config_lib.OptimizerSection(on_nonfinite="stop")
      step_lib.judge(6, total, options, num_skipped=0)
