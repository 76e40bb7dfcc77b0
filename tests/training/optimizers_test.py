"""Optimizers: each that is accepted trains, and survives a death. Learning rates: lengths that
follow the run, warnings, errors.
"""

import math
from unittest import mock

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax import config as config_lib
from bamboo_jax.training.setup import optimizers
from bamboo_jax.verify import trials as trials_lib
from tests import samples
from tests.verify import small


def make(name, options=None, **changes):
  section = config_lib.OptimizerSection(name=name, options=options or {}, **changes)
  return optimizers.make_optimizer(section, 1e-2)


def make_config(name):
  """Returns a config with as little to compile as there can be."""
  return small.make_config(
      *(2, 1, 1),
      mode="lazy",
      model__name="tests.mlp_bn:make_mlp_bn",
      model__options=dict(num_blocks=1, width=4, sequence_length=4, vocab_size=8),
      optimizer__name=name,
      optimizer__options={},
      optimizer__schedule="constant",  # Some take no other.
      optimizer__schedule_options={},
  )


def find_accepted():
  """Returns the names of all optimizers that need no options."""
  accepted = []
  for name in optimizers.find_optimizers():
    try:
      make(name)
    except ValueError:
      continue
    accepted.append(name)
  return accepted


class OptimizersTest(parameterized.TestCase):

  def test_there_are_many(self):
    self.assertLen(find_accepted(), 26)

  def die(self, config):
    outcome = trials_lib.Trials(config).run(small.make_case("1,0/1,reduce"))
    self.assertEqual(outcome.rungs, ("shadow",))

  @parameterized.parameters(*samples.draw(find_accepted(), 3))
  def test_a_death_in_the_second_step(self, name):
    self.die(make_config(name))

  def test_a_death_while_matrices_decay(self):
    config = make_config("adamw")
    config.optimizer.options = {"weight_decay": 0.5}
    config.optimizer.decay = "matrices"
    self.die(config)

  def test_any_takes_a_weight_decay(self):
    sgd = make("sgd", {"weight_decay": 0.5})
    update, _ = sgd.update(1.0, sgd.init(2.0), 2.0)
    self.assertAlmostEqual(float(update), -1e-2 * (1.0 + 0.5 * 2.0))

  @parameterized.named_parameters(
      ("own", "adamw", {"weight_decay": 0.5}),
      ("other_name", "lars", {"weight_decay": 0.5}),
      ("rate_name", "adafactor", {"weight_decay_rate": 0.5}),
      ("none", "sgd", {"weight_decay": 0.5}),
      ("by_default", "lion", {}),
  )
  def test_decay_of_matrices(self, name, options):
    """Parameters of two dimensions decay alike, others do not."""
    kernel = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
    params = {"kernel": kernel, "bias": kernel[1], "scale": np.array(kernel[1, 1])}
    grads = jax.tree.map(np.ones_like, params)

    def update(decay, options):
      optimizer = make(name, options, decay=decay)
      return optimizer.update(grads, optimizer.init(params), params)[0]

    every = update("all", options)
    none = update("all", dict.fromkeys(options or ["weight_decay"], 0.0))
    want = none | {"kernel": every["kernel"]}
    jax.tree.map(np.testing.assert_array_equal, update("matrices", options), want)
    for key in ("kernel", "bias"):
      self.assertTrue(np.any(every[key] != none[key]))

  def test_decay_adds_no_state(self):
    """So a run can go on with the other choice."""
    params = {"kernel": np.ones((2, 3)), "bias": np.ones(3)}
    options = {"weight_decay": 0.5}
    slots = [
        jax.eval_shape(make("adamw", options, decay=decay).init, params)
        for decay in ("all", "matrices")
    ]
    self.assertEqual(*map(jax.tree_util.tree_leaves_with_path, slots))

  def test_an_optimizer_that_decays_all_parameters(self):
    options = {"weight_decay": 0.5}
    with self.assertRaisesRegex(ValueError, "'novograd', which decays all"):
      make("novograd", options, decay="matrices")

  def test_a_rate_beside_that_of_the_section(self):
    with self.assertRaisesRegex(ValueError, "options.learning_rate=1 .* set config.optimizer.lea"):
      make("sgd", {"learning_rate": 1})

  @parameterized.named_parameters(
      ("loss", {}, "'lbfgs' cannot be used: it needs more than .* 'value'"),
      ("layers", {"linesearch": None}, "'lbfgs' .* a parameter depends on oth"),
  )
  def test_needs_more_than_a_layer(self, options, message):
    with self.assertRaisesRegex(ValueError, message) as caught:
      make("lbfgs", options)
    self.assertNotIn("\n", str(caught.exception))

  @parameterized.named_parameters(
      ("norm", optax.clip_by_global_norm(1.0)),
      ("update", optax.normalize_by_update_norm()),
      ("finite", optax.apply_if_finite(optax.sgd(0.1), 3)),
  )
  def test_what_depends_on_other_parameters(self, transform):
    def chain(learning_rate: float):
      return optax.chain(transform, optax.sgd(learning_rate))

    with mock.patch.object(optimizers, "find_optimizers", lambda: {"a": chain}):
      with self.assertRaisesRegex(
          ValueError,
          "by itself. Instead of optax.clip_by_global_norm set config.optimizer.clip_norm",
      ):
        make("a")

  def test_state_whose_arrays_change(self):
    """Its checkpoints could not be read."""
    zeros = lambda params: jax.tree.map(jnp.zeros_like, params)
    halves = lambda tree: jax.tree.map(jnp.float16, tree)
    for update, message in (
        (lambda grads, state, params: (grads, halves(state)), "first was float32.* is float16"),
        (lambda grads, state, params: (grads, {**state, "n": 1}), "n was absent, is int32"),
    ):
      make_own = lambda learning_rate, update=update: optax.GradientTransformation(zeros, update)
      with mock.patch.object(optimizers, "find_optimizers", lambda f=make_own: {"a": f}):
        with self.assertRaisesRegex(ValueError, message):
          make("a")

  def test_state_that_is_not_plain_arrays(self):
    with self.assertRaisesRegex(ValueError, "'noisy_sgd' cannot be used: .* 0/rng_key is key<fry>"):
      make("noisy_sgd")


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
