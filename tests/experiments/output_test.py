"""Estimates from several runs."""

from absl.testing import parameterized

from bamboo_jax.experiments import output


class EstimateTest(parameterized.TestCase):

  def test_interval(self):
    got = output.estimate([1.0, 2.0, 3.0, 4.0])
    self.assertEqual(got.mean, 2.5)
    # t = 3.1824 with 3 degrees of freedom, standard deviation 1.29099.
    self.assertAlmostEqual(got.half_width, 3.18245 * 1.29099 / 2, places=4)
    row = {"value": got.mean, "value_ci95": got.half_width}
    x, y, low, high = output.point(0.1, row, "value")
    self.assertAlmostEqual(high - low, 2 * got.half_width)
    self.assertEqual((x, y), (0.1, 2.5))

  def test_many(self):
    got = output.estimate([0.0, 1.0] * 50)
    # t = 1.9842 with 99 degrees of freedom.
    self.assertAlmostEqual(got.half_width, 1.98422 * 0.502519 / 10, places=4)

  def test_one(self):
    got = output.estimate([3.0])
    self.assertEqual((got.mean, got.half_width), (3.0, None))
    row = output.estimates({"value": [3.0], "none": []})
    self.assertEqual(row, {"value": 3.0, "value_ci95": None, "none": None, "none_ci95": None})
    self.assertEqual(output.point(0.1, row, "value"), [0.1, 3.0, None, None])

  def test_bars_are_explained(self):
    for counts, want in (
        ([1, 1], "single runs, which have no intervals"),
        ([4, 5, 4], "means of 4 to 5 runs; bars: 95 % confidence intervals"),
        ([3], "means of 3 runs; bars: 95 % confidence intervals"),
    ):
      self.assertEqual(output.explain_bars(counts), want)
