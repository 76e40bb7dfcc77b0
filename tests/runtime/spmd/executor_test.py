"""Programs are compiled for the present roles, and for those after a death."""

from absl.testing import absltest

from bamboo_jax.runtime.spmd import executor
from tests.runtime.spmd import pipelines


class JobsTest(absltest.TestCase):

  def test_survivable_deaths(self):
    find = lambda *args: [*executor.survivable_deaths(*args)]
    self.assertEqual(find((2, 3), {0: 3, 1: 2}), [(3, 3), (2, 2)])
    self.assertEmpty(find((2, 3), {}))

  def test_of_roles_now_and_after_a_death(self):
    made = pipelines.make_three()
    lines = made.rows.lines
    # Each pipeline at first, after the death of each node, and after one elsewhere.
    self.assertLen(made.programs.jobs(lines), 2 * (1 + 3 + 1))
    self.assertLen(made.programs.jobs([*lines]), 2 * (1 + 1))  # Those of another view.


if __name__ == "__main__":
  absltest.main()
