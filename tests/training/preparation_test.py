"""What workers need before they have devices can be made once for all."""

import gc
import json

from absl.testing import absltest
import jax

from bamboo_jax.training.setup import accept, job as job_lib
from tests import samples, tiny
from tests.launch import commands

_PREPARE = """
import importlib, json, sys
from bamboo_jax.training.setup import job as job_lib

found = {}
for name in sys.argv[1:]:
  config = importlib.import_module(f"configs.{name}").get_config()
  given = config.to_dict()
  found[name] = job_lib.prepare(config) and config.to_dict() == given
print(json.dumps(found))
"""


class PreparationTest(absltest.TestCase):

  def test_needs_no_devices(self):
    """Seconds: models of full size, traced in a process without devices."""
    names = samples.draw(("gnmt", "gpt2", "resnet"), 1)
    ended = commands.run("-c", _PREPARE, *names)
    self.assertEqual(ended.returncode, 0, msg=ended.stderr)
    self.assertEqual(json.loads(ended.stdout), dict.fromkeys(names, True))

  def test_programs_need_blocks(self):
    """Which is found before there are nodes."""
    config = accept.accept(
        tiny.make_config(model__options__num_blocks=1, pipeline__executor="spmd")
    )
    with self.assertRaisesRegex(ValueError, "needs a block of layers that rep"):
      job_lib.prepare(config)

  def test_is_taken_once_by_a_job_of_the_same_config(self):
    config = accept.accept(tiny.get_config())
    jax.devices()
    self.addCleanup(gc.unfreeze)
    self.assertFalse(job_lib.prepare(config))  # There are devices.
    prepared = job_lib.peek()
    other = accept.accept(tiny.make_config(seed=1))
    self.assertIsNot(job_lib.make_job(other, devices=None).task, prepared)
    job = job_lib.make_job(config, devices=None)
    self.assertIs(job.task, prepared)
    self.assertIs(job.engine.programs, prepared.programs)
    again = job_lib.make_job(config, devices=None)
    self.assertIsNot(again.task, prepared)
