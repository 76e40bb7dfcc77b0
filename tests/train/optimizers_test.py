"""Optimizers: each that is accepted trains, and survives a death."""

import dataclasses
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.profile import profiler
from bamboo_jax.train.setup import optimizers
from configs import sweep_faults
from tests.fault_sweep import cases
from tests.fault_sweep import trials as trials_lib

_CONSTANT = dict(
    learning_rate=1e-2, options={}, schedule="constant", schedule_options={}
)
_DEATH = cases.Case(faults_lib.parse_faults("1,0/1,reduce,kill", source="test"))
_PROFILES = []
_estimate = profiler.estimate


def make_config(name):
  """Returns a config with as little to compile as there can be."""
  config = sweep_faults.get_config()
  config.model.name = "mlp_bn"
  config.model.options = dict(
      num_blocks=1, width=4, sequence_length=4, vocab_size=8
  )
  config.checkpoint.every_steps = 0
  config.pipeline.num_pipelines = config.pipeline.num_microbatches = 1
  config.pipeline.num_stages = 2
  config.redundancy.mode = "lazy"
  config.optimizer.name = name
  config.optimizer.options = config.optimizer.schedule_options = {}
  config.optimizer.schedule = "constant"  # Some take no other.
  return config


def estimate_once(spec, *, platform, fingerprint):
  """Returns the costs of the first optimizer for all; they cut in two alike."""
  if not _PROFILES:
    _PROFILES.append(
        _estimate(spec, platform=platform, fingerprint=fingerprint)
    )
  return dataclasses.replace(_PROFILES[0], fingerprint=fingerprint)


def find_accepted():
  """Returns the names of all optimizers that need no options."""
  accepted = []
  for name in optimizers.find_optimizers():
    try:
      optimizers.make_optimizer(name, **_CONSTANT)
    except ValueError:
      continue
    accepted.append(name)
  return accepted


class OptimizersTest(parameterized.TestCase):

  def test_there_are_many(self):
    self.assertLen(find_accepted(), 26)

  @parameterized.parameters(*find_accepted())
  def test_a_death_in_the_second_step(self, name):
    cache = program_cache.ProgramCache()
    with mock.patch.object(profiler, "estimate", estimate_once):
      trials = trials_lib.Trials(make_config(name), cache=cache)
    outcome = trials.run(_DEATH)
    self.assertEqual(outcome.rungs, ("shadow",))

  def test_any_takes_a_weight_decay(self):
    options = _CONSTANT | {"options": {"weight_decay": 0.5}}
    sgd = optimizers.make_optimizer("sgd", **options)
    update, _ = sgd.update(1.0, sgd.init(2.0), 2.0)
    self.assertAlmostEqual(float(update), -1e-2 * (1.0 + 0.5 * 2.0))

  def test_state_that_is_not_plain_arrays(self):
    with self.assertRaisesRegex(
        ValueError, "'noisy_sgd' cannot be used: .* 0/rng_key is key<fry>"
    ):
      optimizers.make_optimizer("noisy_sgd", **_CONSTANT)
