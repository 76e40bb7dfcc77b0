"""Learning rates: lengths that follow the run, warnings, errors."""

import math

from absl.testing import parameterized
import numpy as np
import optax

from bamboo_jax import config as config_lib
from bamboo_jax.training.setup import optimizers

_DEFAULT = {"init_value": 0.0, "warmup_steps": 10, "decay_steps": None}
_COSINE = "warmup_cosine_decay_schedule"
_SHORT = {"transition_steps": 7, "warmup_steps": None, "init_value": None}


def _make(name, *, num_steps=40, **options):
  section = config_lib.OptimizerSection(
      schedule=name, learning_rate=0.1, schedule_options=_DEFAULT | options
  )
  return optimizers.make_schedule(section, num_steps=num_steps)


def _rates(schedule, num_steps):
  return [schedule.rate_at(count) for count in range(num_steps)]


class SchedulesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (
          "begin",
          "polynomial_schedule",
          {"end_value": 0.0, "power": 2.0, "transition_begin": 15},
          {"transition_steps": 25},
      ),
      (
          "exponential",
          "warmup_exponential_decay_schedule",
          {"decay_rate": 0.5, "transition_begin": 5},
          {"transition_steps": 25},
      ),
      ("given", "linear_onecycle_schedule", {"transition_steps": 9}, {}),
      ("zero_given", "cosine_decay_schedule", {"decay_steps": 60}, {"decay_steps": 60}),
  )
  def test_length(self, name, options, want):
    found = _make(name, **options).options
    self.assertEqual({k: found[k] for k in want}, want)
    for option in ("decay_steps", "transition_steps"):
      if options.get(option) is not None:
        self.assertEqual(found[option], options[option])

  def test_all_schedules_with_a_length_end_with_the_run(self):
    needed = {"end_value": 0.0, "power": 1.0, "decay_rate": 0.1}
    for name, known in optimizers.find_schedules().items():
      if not {"decay_steps", "transition_steps"} & {*known}:
        continue
      options = {k: v for k, v in needed.items() if k in known}
      rates = {n: _rates(_make(name, num_steps=n, **options), n) for n in (40, 80)}
      for num_steps, found in rates.items():
        with self.subTest(name, num_steps=num_steps):
          self.assertGreater(found[-1], 0)
          self.assertLess(found[-1], 0.02)
          self.assertAlmostEqual(max(found), 0.1, places=6)

  def test_rates_are_those_of_optax(self):
    options = {"init_value": 0.0, "warmup_steps": 10, "decay_steps": 40}
    want = optax.warmup_cosine_decay_schedule(peak_value=0.1, **options)
    found = _make(_COSINE)
    np.testing.assert_allclose(_rates(found, 40), [want(count) for count in range(40)], rtol=1e-5)
    self.assertEqual(_rates(_make("constant"), 2), [0.1, 0.1])

  @parameterized.parameters(
      (_COSINE, 40, {}, None),
      (_COSINE, 300_000, {}, None),
      (_COSINE, 40, {"decay_steps": 39}, "rate is 0 from step 40 of config.num_steps=40"),
      (_COSINE, 100, {"decay_steps": 40}, "rate is 0 from step 41 of config.num_steps=100"),
      ("linear_schedule", 200_000, {"end_value": 0.0, **_SHORT}, "rate is 0 from step 8 of"),
      ("linear_schedule", 40, {"end_value": 0.01, **_SHORT}, None),
      (_COSINE, 8, {}, "warmup_steps=10 is not less than config.num_steps=8"),
      ("warmup_constant_schedule", 10, {}, "warmup_steps=10 is not less than config.num_steps=10"),
      ("warmup_constant_schedule", 11, {}, None),
      (_COSINE, 0, {}, None),
  )
  def test_warning(self, name, num_steps, options, want):
    schedule = _make(name, num_steps=num_steps, **options)
    found = schedule.find_warnings(num_steps)
    self.assertLen(found, want is not None)
    if want is not None:
      self.assertIn(want, found[0])

  def test_a_rate_of_zero(self):
    section = config_lib.OptimizerSection(schedule="constant", learning_rate=0.0)
    *_, found = optimizers.make_schedule(section, num_steps=5).find_warnings(5)
    self.assertIn("rate is 0 from step 1 of", found)
    unknown = optimizers.LearningRateSchedule("own", 1.0, lambda count: math.nan)
    self.assertEmpty(unknown.find_warnings(5))

  @parameterized.parameters(
      ("constant", {}, ("warmup_steps=10", "init_value")),
      ("cosine_decay_schedule", {}, ("init_value=0.0", "warmup_steps=10")),
      (
          "piecewise_constant_schedule",
          {"boundaries_and_scales": {5: 0.1}, "alpha": 1.0},
          ("warmup_steps=10", "alpha=1.0"),
      ),
  )
  def test_options_of_other_schedules_are_left_out(self, name, options, want):
    (found,) = _make(name, **options).find_warnings(40)
    self.assertIn("ignored", found)
    for part in want:
      self.assertIn(part, found)

  @parameterized.parameters(
      ("constnt", {}, "'constnt'; did you mean 'constant'"),
      ("sgdr_schedule", {}, "Unknown schedule 'sgdr_schedule'"),
      ("linear_schedule", {"ed": 1}, "schedule 'linear_schedule' 'ed'"),
      ("constant", {"ed": 1}, "'constant' takes no options, got ed"),
      ("linear_schedule", {}, "needs the option 'end_value'"),
      (_COSINE, {"decay_steps": 5}, "decay_steps=5 must be more than .*warmup_steps=10, as it inc"),
      (_COSINE, {"decay_steps": 10}, "decay_steps=10 must be more than"),
      (
          "linear_schedule",
          {"end_value": 0.0, "transition_steps": 0},
          "transition_steps must be at least 1, got 0",
      ),
      (_COSINE, {"warmup_steps": -1}, "warmup_steps must be at least 0, got -1"),
      (_COSINE, {"warmup_steps": "a"}, "'warmup_steps' of schedule .* must be int, got 'a'"),
  )
  def test_bad(self, name, options, message):
    with self.assertRaisesRegex(ValueError, message):
      _make(name, **options)
