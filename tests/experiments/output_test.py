"""Estimates, and runs in other processes."""

import contextlib
import io

from absl.testing import parameterized

from bamboo_jax.experiments import output


def square(x):
  return x * x


class EstimateTest(parameterized.TestCase):

  def test_interval(self):
    got = output.estimate([1.0, 2.0, 3.0, 4.0])
    self.assertEqual(got.mean, 2.5)
    # t = 3.182 with 3 degrees of freedom, standard deviation 1.29099.
    self.assertAlmostEqual(got.half_width, 3.182 * 1.29099 / 2, places=4)
    point = got.at(0.1)
    self.assertAlmostEqual(point.high - point.low, 2 * got.half_width)
    self.assertEqual((point.rate, point.value, point.num_runs), (0.1, 2.5, 4))

  def test_many(self):
    got = output.estimate([0.0, 1.0] * 50)
    self.assertAlmostEqual(got.half_width, 1.96 * 0.502519 / 10, places=4)

  def test_one(self):
    got = output.estimate([3.0])
    self.assertEqual((got.mean, got.half_width), (3.0, None))
    point = got.at(0.1)
    self.assertEqual((point.low, point.high, point.num_runs), (None, None, 1))


class RunAllTest(parameterized.TestCase):

  @parameterized.parameters(1, 2)  # Starting processes takes a second.
  def test_order_and_progress(self, num_processes):
    with contextlib.redirect_stdout(io.StringIO()) as out:
      got = output.run_all(
          square,
          [3, 1, 2],
          num_runs=lambda job: job,
          describe=lambda job: {"job": job},
          num_processes=num_processes,
      )
    self.assertEqual(got, [9, 1, 4])
    done = [line.split()[:2] for line in out.getvalue().splitlines()]
    self.assertEqual(
        done, [["run=3", "job=3"], ["run=4", "job=1"], ["run=6", "job=2"]]
    )
