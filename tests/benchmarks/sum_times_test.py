"""Both kinds of a sum are timed, by processes that start JAX: some seconds."""

from absl.testing import parameterized

from bamboo_jax.benchmarks import sum_times
from tests import samples


class SumTimesTest(parameterized.TestCase):

  @samples.only_all
  def test_measure(self):
    found = sum_times.measure(mib=1, owners=2, rounds=1)
    self.assertGreater(found.pop("transport"), 0)
    self.assertGreater(found.pop("gloo"), 0)
    self.assertEmpty(found)
