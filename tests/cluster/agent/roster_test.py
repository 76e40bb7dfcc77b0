"""Who makes the next view, from what one agent knows."""

from absl.testing import absltest

from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import roster as roster_lib


def member(number):
  return views.Member(
      number, f"n{number}", "a", f"life {number}", "127.0.0.1", 1
  )


class RosterTest(absltest.TestCase):

  def make(self, me, *, least, ready):
    roster = roster_lib.Roster(least=least)
    roster.me = member(me)
    for number in ready:
      roster.known[f"life {number}"] = member(number)
      roster.ready[f"life {number}"] = 0
    return roster

  def test_the_first_of_the_ready_begins_once_there_are_enough(self):
    self.assertIsNone(self.make(0, least=3, ready=[0, 1]).wanted(era=0))
    self.assertIsNone(self.make(1, least=2, ready=[0, 1]).wanted(era=0))
    view = self.make(0, least=2, ready=[0, 1]).wanted(era=0)
    self.assertEqual(view.numbers, {0, 1})

  def test_who_died_before_the_first_view_does_not_lead_to_it(self):
    roster = self.make(1, least=2, ready=[0, 1, 2])
    roster.lose("life 0", "gone")
    self.assertEqual(roster.wanted(era=0).numbers, {1, 2})

  def test_a_notice_is_told_in_the_next_view(self):
    roster = self.make(0, least=2, ready=[0, 1])
    roster.adopt(roster.wanted(era=0))
    self.assertIsNone(roster.wanted(era=0))
    roster.noticed["life 1"] = "SIGTERM"
    view = roster.wanted(era=0)
    self.assertEqual((view.numbers, view.leaving), ({0, 1}, (1,)))
    roster.adopt(view)
    self.assertIsNone(roster.wanted(era=0))


if __name__ == "__main__":
  absltest.main()
