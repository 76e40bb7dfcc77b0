"""Programs are compiled for the present roles, and for those after a death."""

import types
from unittest import mock

from absl.testing import absltest

from bamboo_jax.runtime.spmd import executor

OWNERS = [(0, 1), (2, 3)]
SHADOWS = [{0: 1, 1: 0}, {0: 3, 1: 2}]
DEATHS = [[(1, 1), (2, 3)], [(0, 0), (2, 3)], [(0, 1), (3, 3)], [(0, 1), (2, 2)]]


class JobsTest(absltest.TestCase):

  def test_deaths_in_every_pipeline(self):
    self.assertEqual(list(executor.survivable_deaths(OWNERS, SHADOWS)), DEATHS)
    self.assertEmpty([*executor.survivable_deaths(OWNERS, [{} for _ in OWNERS])])

  def test_of_roles_now_and_after_a_death(self):
    asked, shares = [], [(0,), (1,)]
    ask = lambda lines: asked.append([row for row, _ in lines]) or [len(asked)]
    lines = [*zip(OWNERS, shares, strict=True)]
    engine = types.SimpleNamespace(owners=OWNERS, shadows=SHADOWS, shares=shares, lines=lines)
    programs = executor.Programs(mock.Mock(), mock.Mock(jobs=ask), engine, mock.Mock())
    self.assertEqual(programs.jobs(lines), [1, 2, 3, 4, 5])
    self.assertEqual(asked, [OWNERS, *DEATHS])
    self.assertEqual(programs.jobs([*lines]), [6])  # Those of another view.


if __name__ == "__main__":
  absltest.main()
