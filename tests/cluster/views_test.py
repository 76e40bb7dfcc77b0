"""Views follow each other by the set of nodes alone."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax.cluster import views
from tests import members

member = members.member


def view(*numbers, number=1):
  return members.view(number, *numbers)


class ViewsTest(parameterized.TestCase):

  def test_notices(self):
    notice = {member(n).incarnation: "SIGTERM" for n in (1, 3, 4)}
    first = views.next_view(
        view(0, 1, 3),
        lost={member(3).incarnation: "gone"},
        candidates=[member(4), member(5)],
        noticed=notice,
    )
    self.assertEqual(first.numbers, {0, 1, 5})
    self.assertEqual(first.leaving, (1,))
    self.assertEqual(first.reason, "n3 left: gone; n1 will be preempted (SIGTERM); n5 joined")
    again = views.next_view(first, lost={}, candidates=(), noticed=notice)
    self.assertIs(again, first)
    # Whoever makes the next view may not have heard of it.
    second = views.next_view(first, lost={}, candidates=[member(6)])
    self.assertEqual(second.leaving, (1,))
    third = views.next_view(second, lost={member(1).incarnation: "left"}, candidates=())
    self.assertEqual((third.numbers, third.leaving), ({0, 5, 6}, ()))
    with self.assertRaisesRegex(ValueError, "must be members"):
      views.View(1, (), "", leaving=(1,))

  def test_a_number_that_was_given_out_again(self):
    other = dataclasses.replace(member(1), incarnation="another life")
    again = dataclasses.replace(member(2), incarnation="another life")
    got = views.next_view(view(0, 1), lost={}, candidates=[other, again, member(2)])
    self.assertEqual(got.members, (member(0), member(1), again))

  @parameterized.named_parameters(
      # Nodes of the view that was adopted, those of later ones, and the number of its successor.
      ("none", "01", "", None),
      ("joins", "01", "012 0123", None),
      ("a_death", "01", "0", 2),
      ("a_join_after_a_death", "01", "0 02", 2),
      ("a_join_before_a_death", "01", "012 02", 3),
      ("another_death", "012", "01 013 13", 4),
      ("a_newcomer_that_died", "01", "0 02 0", 2),
  )
  def test_successor(self, adopted, later, number):
    later = [view(*map(int, v), number=n) for n, v in enumerate(later.split(), 2)]
    got = views.find_successor(view(*map(int, adopted)), later)
    self.assertEqual(got and got.number, number)

  @parameterized.parameters(
      ("01", "1", 0.5),
      ("01234", "2", 0.2),
      ("0123", "2356", 0.5),
      ("0123", "3456", 0.25),
      ("", "01", 1.0),
  )
  def test_part_that_stays(self, before, after, expected):
    before, after = (view(*map(int, numbers)) for numbers in (before, after))
    self.assertEqual(views.part_that_stays(before, after), expected)

  def test_copies_say_something_and_change_nothing_else(self):
    before = members.view(3, 1, 4, leaving=(4,), epoch=2)
    asked = views.ask(before, "n9")
    answered = views.answer(asked, "n4")
    found = [(v.number, v.repeats, v.is_ask, v.text) for v in (before, asked, answered)]
    words = "n9 asks whether any member of view 3 is alive"
    self.assertEqual(
        found, [(3, 0, False, "test"), (4, 3, True, words), (5, 3, False, "n4 is alive")]
    )
    for view_of_log in (before, asked, answered):
      self.assertEqual(views.original(view_of_log), before)
    self.assertIsNone(views.find_successor(before, [asked, answered]))
    noticed = {member(4).incarnation: "SIGTERM"}
    unchanged = views.next_view(answered, lost={}, candidates=(), noticed=noticed)
    self.assertIs(unchanged, answered)
    lost = {member(1).incarnation: "gone"}
    after = views.next_view(answered, lost=lost, candidates=())
    want = members.view(6, 4, reason="n1 left: gone", leaving=(4,), epoch=2)
    self.assertEqual(after, want)

  def test_another_life_and_another_run(self):
    view = members.view(3, 1, 4, epoch=2, run=2)
    over = views.over(view)
    self.assertEqual((over.number, over.members, over.run), (4, (), 2))
    begun = views.begin_run(over, "n1 begins")
    self.assertEqual((begun.number, begun.epoch, begun.run), (5, 0, 5))
    alone = views.begin_run(over, "n1 begins", (members.member(1),))
    self.assertEqual((alone.number, alone.epoch, alone.run), (5, 5, 5))
    for origin in (over, begun):
      first = views.next_view(origin, lost={}, candidates=[members.member(7)])
      later = views.next_view(first, lost={}, candidates=[members.member(8)])
      for joined in (first, later):
        self.assertEqual((joined.epoch, joined.run), (origin.number, origin.run))
      self.assertEqual(views.ask(first, "n9").run, origin.run)

  @parameterized.parameters((1, 0), (0, 0))
  def test_members_must_be_sorted(self, *numbers):
    with self.assertRaisesRegex(ValueError, "sorted by number"):
      view(*numbers)
