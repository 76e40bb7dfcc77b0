"""Optimizers: each that is accepted trains, and survives a death."""

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
