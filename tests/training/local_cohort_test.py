"""A cohort of one member: what happens to nodes makes views."""

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.training import cohort as cohort_lib


def strike(cohort, line, owner=None):
  """Lets a fault happen that is written as in a file."""
  (fault,) = faults_lib.parse_faults(line, source="test")
  return cohort.strike(faults_lib.Due(fault, owner))


class LocalCohortTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.cohort = cohort_lib.LocalCohort(4)

  def test_nothing_is_said_twice_in_a_view(self):
    self.cohort.gather("vote 1", 0)
    with self.assertRaisesRegex(AssertionError, "vote 1 is said twice"):
      self.cohort.gather("vote 1", 0)

  @parameterized.parameters(
      ("1,0/1,3,kill", 1, {0, 2, 3}),
      ("1,0/1,vote,node", 2, {0, 1, 3}),
      ("1,0/1,0,stop", 3, {0, 1, 2}),
  )
  def test_a_death_is_known_at_once(self, line, owner, left):
    strike(self.cohort, line, owner)
    self.assertEqual(self.cohort.hosted, left)
    for call in (self.cohort.check, lambda: self.cohort.gather("vote 1", 0)):
      with self.assertRaises(base.ViewChangedError):
        call()
    view = self.cohort.wait_change(0.0)
    self.assertEqual((view.number, view.numbers), (2, left))
    self.cohort.adopt(view.number)
    self.cohort.check()
    self.assertFalse(strike(self.cohort, line, owner))  # It happens once.
    self.cohort.check()

  @parameterized.product(
      struck=[("2,,,leader", {1, 2, 3}), ("2,n2,,kill", {0, 1, 3}), ("2,,,all", {4, 5, 6, 7})],
      num_before=[0, 1, 7],
  )
  def test_any_time_is_within_as_many_checks_as_a_step(self, struck, num_before):
    line, left = struck
    for seed in range(10):
      self.cohort = cohort_lib.LocalCohort(4, seed=seed)
      with self.assertRaises(base.ViewChangedError):
        for check in range(16 + num_before + 8):
          if check and check % 8 == 0:
            self.cohort.settled()
          if check == 16 + num_before:
            strike(self.cohort, line)
          self.cohort.check()
      self.assertEqual(self.cohort.hosted, left)

  def test_who_comes_or_leaves_interrupts_nobody(self):
    self.assertFalse(strike(self.cohort, "2,,,join"))
    self.cohort.wait_members(5)
    with self.assertRaisesRegex(base.InfeasibleError, "1 more"):
      self.cohort.wait_members(6, why="1 more")
    strike(self.cohort, "2,n1,,notice")
    self.cohort.check()
    newest = self.cohort.newest
    self.assertEqual((newest.number, newest.leaving), (3, (1,)))
    self.assertEqual(newest.numbers, {0, 1, 2, 3, 4})
    self.cohort.adopt(3)
    self.cohort.say(1, gone="handed over")
    with self.assertRaises(base.ViewChangedError):
      self.cohort.check()

  def test_the_last_death_of_agents_and_workers(self):
    for node in range(3):
      strike(self.cohort, f"2,0/{node},0,node", node)
    with self.assertRaisesRegex(ValueError, "No live node is left"):
      strike(self.cohort, "2,0/3,0,node", 3)
