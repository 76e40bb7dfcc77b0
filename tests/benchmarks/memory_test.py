"""What a plan says that nodes take is what they take."""

from absl.testing import absltest

from tests import samples
from tests.launch import commands

_CODE = """
from bamboo_jax.benchmarks import memory
from bamboo_jax.runtime import devices
from bamboo_jax.training.setup import accept
from configs import bench_memory

config = bench_memory.get_config()
config.redundancy.mode = "none"
config = accept.accept(config)
devices.use_virtual_devices(config.pipeline.num_stages, distinct=True)
print("ratios", *(r.ratio for r in memory._measure(config, "none")))
"""


class MemoryTest(absltest.TestCase):

  @samples.only_all  # See `tests/plan/memory_test.py`.
  def test_predicted_is_measured(self):
    """In a process of its own: whatever arrays there are count."""
    done = commands.run("-c", _CODE)
    self.assertEqual(done.returncode, 0, done.stderr)
    ratios = done.stdout.rpartition("ratios")[2].split()
    self.assertLen(ratios, 3)
    for ratio in map(float, ratios):
      self.assertAlmostEqual(ratio, 1.0, delta=0.05)
