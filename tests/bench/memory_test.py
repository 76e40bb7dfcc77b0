"""What a plan says that nodes take is what they take."""

from absl.testing import absltest

from bamboo_jax.bench import memory
from configs import bench_memory


class MemoryTest(absltest.TestCase):

  def test_predicted_is_measured(self):
    config = bench_memory.get_config()
    config.redundancy.mode = "none"
    found = memory._measure(config, "none")
    self.assertLen(found, config.pipeline.num_stages)
    for result in found:
      self.assertAlmostEqual(result.ratio, 1.0, delta=0.05)
