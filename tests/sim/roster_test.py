"""Names, places and zones of nodes."""

from absl.testing import absltest

from bamboo_jax.sim import roster as roster_lib
from bamboo_jax.traces import trace as trace_lib


def follow(roster, text):
  return roster.follow([trace_lib.Event(0, *entry.split()) for entry in text.split(",")])


class RosterTest(absltest.TestCase):

  def test_places(self):
    roster = roster_lib.NodeRoster()
    news = follow(roster, "add a/1,add b/2,add a/3")
    self.assertEqual(roster.num_live, 3)
    self.assertEqual(roster.seat(news.added), (0, 1, 2))
    self.assertEqual(roster.zones(), {0: "a", 1: "b", 2: "a"})
    lost = follow(roster, "remove b/2").lost
    self.assertEqual(roster.find(lost), {1})
    roster.rearrange([2, 0])
    self.assertEqual(roster.names([0, 1]), ("a/3", "a/1"))
    self.assertEqual(roster.find(lost), frozenset())

  def test_gone_before_it_was_ready(self):
    roster = roster_lib.NodeRoster()
    first = follow(roster, "add x").added
    second = follow(roster, "remove x,add x").added
    self.assertEqual(roster.seat(first), ())
    self.assertEqual(roster.seat(second), (0,))
    self.assertEqual(follow(roster, "add y,remove y").added, ())

  def test_a_name_that_comes_again(self):
    roster = roster_lib.NodeRoster()
    roster.seat(follow(roster, "add x").added)
    follow(roster, "remove x")
    self.assertEqual(roster.seat(follow(roster, "add x").added), (1,))
    self.assertEqual(roster.find(follow(roster, "notice x").noticed), {1})
    self.assertEqual(roster.find(follow(roster, "remove x").lost), {1})
