"""Learning rates: lengths that follow the run, warnings, errors."""

import math

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.training.setup import optimizers

_DEFAULT = {"init_value": 0.0, "warmup_steps": 10, "decay_steps": None}
_COSINE = "warmup_cosine_decay_schedule"
_SHORT = {"transition_steps": 7, "warmup_steps": None, "init_value": None}


def _make(name, *, num_steps=40, rate=0.1, **options):
  section = config_lib.OptimizerSection(
      schedule=name, learning_rate=rate, schedule_options=_DEFAULT | options
  )
  return optimizers.make_schedule(section, num_steps=num_steps)


class SchedulesTest(parameterized.TestCase):

  @parameterized.parameters(
      ("polynomial_schedule", {"end_value": 0.0, "power": 2.0, "transition_begin": 15}, 25),
      ("warmup_exponential_decay_schedule", {"decay_rate": 0.5, "transition_begin": 5}, 25),
      ("linear_onecycle_schedule", {"transition_steps": 9}, 9),
  )
  def test_length(self, name, options, want):
    self.assertEqual(_make(name, **options).options["transition_steps"], want)

  def test_all_schedules_with_a_length_end_with_the_run(self):
    needed = {"end_value": 0.0, "power": 1.0, "decay_rate": 0.1}
    for name, known in optimizers.find_schedules().items():
      if not {"decay_steps", "transition_steps"} & {*known}:
        continue
      options = {k: v for k, v in needed.items() if k in known}
      for num_steps in (40, 80):
        schedule = _make(name, num_steps=num_steps, **options)
        found = [schedule.rate_at(count) for count in range(num_steps)]
        with self.subTest(name, num_steps=num_steps):
          self.assertGreater(found[-1], 0)
          self.assertLess(found[-1], 0.02)
          self.assertAlmostEqual(max(found), 0.1, places=6)

  @parameterized.parameters(
      (_COSINE, 40, {}),
      (_COSINE, 300_000, {}),
      (_COSINE, 40, {"decay_steps": 39}, "rate is 0 from step 40 of config.num_steps=40"),
      (_COSINE, 100, {"decay_steps": 40}, "rate is 0 from step 41 of config.num_steps=100"),
      ("linear_schedule", 200_000, {"end_value": 0.0, **_SHORT}, "rate is 0 from step 8 of"),
      ("linear_schedule", 40, {"end_value": 0.01, **_SHORT}),
      (_COSINE, 8, {}, "warmup_steps=10 is not less than config.num_steps=8"),
      ("warmup_constant_schedule", 10, {}, "warmup_steps=10 is not less than config.num_steps=10"),
      ("warmup_constant_schedule", 11, {}),
      (_COSINE, 0, {}),
      # Options of other schedules are left out.
      ("constant", 40, {}, "ignored", "warmup_steps=10", "init_value"),
      ("cosine_decay_schedule", 40, {}, "ignored", "init_value=0.0", "warmup_steps=10"),
      (
          *("piecewise_constant_schedule", 40, {"boundaries_and_scales": {5: 0.1}, "alpha": 1.0}),
          *("ignored", "warmup_steps=10", "alpha=1.0"),
      ),
  )
  def test_warning(self, name, num_steps, options, *want):
    schedule = _make(name, num_steps=num_steps, **options)
    found = schedule.find_warnings(num_steps)
    self.assertLen(found, bool(want))
    for part in want:
      self.assertIn(part, found[0])

  def test_a_rate_of_zero(self):
    *_, found = _make("constant", rate=0.0).find_warnings(5)
    self.assertIn("rate is 0 from step 1 of", found)
    unknown = optimizers.LearningRateSchedule("own", 1.0, lambda count: math.nan)
    self.assertEmpty(unknown.find_warnings(5))

  @parameterized.parameters(
      ("constnt", {}, "'constnt'; did you mean 'constant'"),
      ("sgdr_schedule", {}, "Unknown schedule 'sgdr_schedule'"),
      ("linear_schedule", {"ed": 1}, "schedule 'linear_schedule' 'ed'"),
      ("constant", {"ed": 1}, "'constant' takes no options, got ed"),
      ("linear_schedule", {}, "needs the option 'end_value'"),
      (_COSINE, {"decay_steps": 10}, "steps=10 must be more than .*warmup_steps=10, as it inc"),
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
