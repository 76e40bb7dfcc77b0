"""Runs in other processes."""

import contextlib
import io

from absl.testing import parameterized

from bamboo_jax.experiments import output


def square(x):
  return x * x


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
        done, [["step=3", "job=3"], ["step=4", "job=1"], ["step=6", "job=2"]]
    )
