"""What a config may have, and what of it reaches the programs."""

from absl.testing import parameterized

from bamboo_jax.train.setup import build
from tests import tiny


class CheckConfigTest(parameterized.TestCase):

  @parameterized.parameters(
      ("num_steps", 0),
      ("pipeline.num_pipelines", 1),
      ("pipeline.num_stages", 1),
      ("pipeline.num_microbatches", 1),
      ("pipeline.microbatch_size", 1),
      ("pipeline.num_shares", 1),
      ("redundancy.spares", 0),
      ("redundancy.check_every_steps", 0),
      ("data.prefetch_steps", 0),
      ("evaluate.every_steps", 0),
      ("evaluate.num_microbatches", 1),
      ("checkpoint.every_steps", 0),
      ("checkpoint.keep", 1),
      ("metrics.trace_steps", 0),
  )
  def test_least(self, name, least):
    config = tiny.get_config()
    config.update_from_flattened_dict({name: least})
    build.check_config(config)
    config.update_from_flattened_dict({name: least - 1})
    message = f"config.{name} must be at least {least}, got {least - 1}"
    with self.assertRaisesRegex(ValueError, message):
      build.check_config(config)


class TaskTest(parameterized.TestCase):

  @parameterized.parameters(
      ("model.prng", "rbg", "prng"),
      ("pipeline.remat", "dots", "remat"),
      ("seed", 7, "seed"),
  )
  def test_the_model_as_one_stage(self, key, value, name):
    config = tiny.get_config()
    self.assertNotEqual(getattr(build.make_task(config).whole, name), value)
    config.update_from_flattened_dict({key: value})
    self.assertEqual(getattr(build.make_task(config).whole, name), value)
