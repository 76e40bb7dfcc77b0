from absl.testing import parameterized

from bamboo_jax.sim import monte_carlo


class EstimateTest(parameterized.TestCase):

  def test_interval(self):
    got = monte_carlo.estimate([1.0, 2.0, 3.0, 4.0])
    self.assertEqual(got.mean, 2.5)
    # t = 3.182 with 3 degrees of freedom, standard deviation 1.29099.
    self.assertAlmostEqual(got.half_width, 3.182 * 1.29099 / 2, places=4)
    self.assertAlmostEqual(got.high - got.low, 2 * got.half_width)

  def test_many(self):
    got = monte_carlo.estimate([0.0, 1.0] * 50)
    self.assertAlmostEqual(got.half_width, 1.96 * 0.502519 / 10, places=4)

  def test_one(self):
    self.assertEqual(monte_carlo.estimate([3.0]), monte_carlo.Estimate(3.0))
