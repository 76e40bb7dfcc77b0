from absl.testing import parameterized
import ml_collections

from bamboo_jax.launch import config_flag
from configs import default
from tests import tiny


def _changed(path, value):
  config = tiny.get_config().unlock()
  section = config
  *sections, key = path.split(".")
  for name in sections:
    section = section[name]
  with config.ignore_type():
    section[key] = value
  return config


class ConfigFlagTest(parameterized.TestCase):

  @parameterized.parameters(default, tiny)
  def test_config_passes_and_is_locked(self, module):
    config = module.get_config()
    config_flag.check(config)
    self.assertTrue(config.is_locked)

  @parameterized.named_parameters(
      ("float_for_int", "num_steps", 2.5, "config.num_steps must be int, got"),
      ("text", "pipeline.num_stages", "4", "num_stages must be int, got '4'"),
      ("truth", "seed", True, "config.seed must be int, got True, bool"),
      ("none", "seed", None, "config.seed must be int, got None"),
      ("no_section", "model", 3, "config.model must be a dict, got 3"),
      ("misspelt_section", "modle", {}, "'modle'; did you mean 'model'"),
  )
  def test_bad_config(self, path, value, message):
    with self.assertRaisesRegex(ValueError, message):
      config_flag.check(_changed(path, value))

  @parameterized.named_parameters(
      ("integer_for_float", "optimizer.learning_rate", 1),
      ("none", "optimizer.clip_norm", None),
      ("option", "model.options.anything", [1, 2]),
      ("placeholder", "plan.profile", "profile.json"),
  )
  def test_good_config(self, path, value):
    config_flag.check(_changed(path, value))

  def test_key_that_is_missing(self):
    config = ml_collections.ConfigDict({"num_steps": 3})
    with self.assertRaisesRegex(
        ValueError, "config.checkpoint is missing; a config"
    ):
      config_flag.check(config)

  @parameterized.named_parameters(
      ("one_dash", ["-config.num_step", "3"], "did you mean 'num_steps'"),
      ("negated", ["--noconfig.metrics.plot"], "did you mean 'plots'"),
      ("section", ["--config.pipelin.remat=x"], "did you mean 'pipeline'"),
      ("leaf", ["--config.seed.a=3"], "config.seed has no keys, got --config"),
      ("next", ["--config", "no.py"], "There is no config file 'no.py'"),
      ("nothing", ["--config"], "There is no config file ''"),
  )
  def test_bad_arguments(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      config_flag.check_arguments(["command", *arguments])

  @parameterized.parameters(
      "--config=configs/default.py",
      "--config=configs/default.py:some_text",
      "--config.model.options.anything=3",
      "--config.optimizer.schedule_options={}",
      "--stop_at=3",
  )
  def test_good_arguments(self, argument):
    config_flag.check_arguments(["command", argument])
