"""Whom one agent knows."""

from absl.testing import absltest

from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent.knowledge import roster as roster_lib
from tests import members

member = members.member


class RosterTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.roster = roster_lib.AgentRoster()
    self.roster.me = member(0)

  def test_each_is_met_once(self):
    self.assertFalse(self.roster.meet(member(0)))
    self.assertTrue(self.roster.meet(member(1)))
    self.assertFalse(self.roster.meet(member(1)))
    self.roster.drop("life 1")
    self.assertTrue(self.roster.meet(member(1)))
    self.roster.drop("life 1")
    self.roster.left.add("life 1")
    self.assertFalse(self.roster.meet(member(1)))
    self.assertNotIn("life 1", self.roster.known)
    self.roster.meet(member(0))
    self.assertEqual(self.roster.most_number, 1)

  def test_views(self):
    both, one = (member(0), member(1)), (member(1),)
    self.assertTrue(self.roster.adopt(views.View(1, both, "")))
    self.assertFalse(self.roster.adopt(views.View(1, one, "")))
    self.assertTrue(self.roster.is_member)
    self.assertTrue(self.roster.adopt(views.View(2, one, "")))
    self.assertFalse(self.roster.is_member)
    self.assertEqual(self.roster.incarnations, ["life 1"])
    self.assertEqual(self.roster.views_of("life 0"), [1])
    self.assertEqual(self.roster.views_of("life 1"), [1, 2])

  def test_others_may_have_missed_the_last_few_views(self):
    for number in range(1, 13):
      self.roster.adopt(views.View(number, (member(0),), ""))
    self.roster.drop_older(11)
    found = [view.number for view in self.roster.views()]
    self.assertEqual(found, list(range(3, 13)))
    self.assertEqual(self.roster.find_view(2).members, ())
    self.assertEqual(self.roster.find_view(3).members, (member(0),))
