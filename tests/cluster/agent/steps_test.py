"""What one agent does about what happens to others."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import messages, views
from tests import members
from tests.cluster.agent import given


class LinksTest(given.AgentCase):

  def test_a_death(self):
    self.begin()
    self.play("n1 refuses | n2 certain n1 | pass 0.02")
    view = members.view(2, 0, 2, reason="n1 left: its agent cannot be reached: refused")
    self.assertEqual(self.view, view)
    self.assertEqual(self.find_view(2), view)
    self.assertIn((messages.NewView(view), None), self.mesh.sent)
    self.assertEqual(self.mesh.forgotten, ["life 1"])
    self.assertIn(messages.NewView(view), self.worker.sent)
    self.assertNotIn("life 1", self.agent.roster.known)

  def test_who_refuses_and_is_no_member_has_left(self):
    self.begin()
    self.records.mark("nodes/life 5", {})
    self.play("n5 refuses | n5 comes | pass 0.1")
    self.assertNotIn("life 5", self.agent.roster.known)
    self.assertEqual(self.records.names("nodes"), [])
    self.mesh.refusing.clear()
    self.play("n5 comes | pass 0.1")  # It is back.
    self.assertIn("life 5", self.agent.roster.connected)

  @parameterized.parameters((0, 3, True), (3, 0, False))
  def test_two_nodes_with_one_name(self, first, second, ends):
    """The later one ends."""
    self.begin(me=second, numbers=(1, 2))
    self.agent.roster.me = dataclasses.replace(members.member(second), name="same")
    other = dataclasses.replace(members.member(first), name="same")
    self.tell(self.agent._welcome, other)
    self.run_for(0.1)
    why = "Another node 'same' of this run is alive; give each node its own name."
    self.assertEqual(str(self.ended), why if ends else "None")

  def test_who_is_reached_is_told_what_it_has_missed(self):
    self.begin()
    self.play("n1 beats 1 | n2 beats 1 | worker ready")
    self.hear_worker(messages.Say(layout={"a": 1}))
    self.tell(self.agent.give_notice, "SIGTERM")
    post = messages.Post(1, "vote", "yes")
    self.hear_worker(post)
    missed = [
        messages.Say(is_ready=True, origin=0, notice="SIGTERM"),
        messages.NewView(members.view(1, 0, 1, 2)),
    ]
    for number, more in ((5, [messages.Beginning({"a": 1})]), (1, [post])):
      self.mesh.sent.clear()
      self.tell(self.agent._resend, members.member(number))
      self.assertEqual(self.mesh.sent, [(m, f"life {number}") for m in missed + more])

  def test_a_post_of_the_former_view_is_sent_however_many_views_have_passed(self):
    self.begin()
    post = messages.Post(1, "vote", "yes")
    self.hear_worker(post)
    for number in range(2, 40):  # Asks and answers, which concern no worker.
      self.play(f"n1 shows {number} n0 n1 n2")
    self.hear_worker(messages.Beat(step=1, view=39))
    self.mesh.sent.clear()
    self.tell(self.agent._resend, members.member(1))
    self.assertIn((post, "life 1"), self.mesh.sent)


class SuspicionsTest(given.AgentCase):

  def test_silence(self):
    self.begin()
    self.play("pass 2.9 n1")
    self.assertEqual({type(m) for m, _ in self.mesh.sent}, {messages.Beat})
    self.assertBetween(len(self.mesh.sent), 8, 11)
    self.play("pass 0.3 n1")
    reason = "its agent was silent for 3.0 s"
    self.assertIn(f"Suspects n2: {reason}", self.logged)
    suspects = (messages.Suspect("life 2", reason, is_certain=False),)
    told = messages.Say(suspects=suspects, count=1)
    self.assertIn((told, None), self.mesh.sent)
    self.assertIn(messages.NewView(self.view, is_due=True), self.worker.sent)

  def test_of_many_agents_each_beats_less_often(self):
    self.begin(numbers=range(601))
    self.run_for(2.9)
    self.assertBetween(sum(isinstance(m, messages.Beat) for m, _ in self.mesh.sent), 2, 3)

  def test_of_who_was_left_out_nothing_is_kept(self):
    self.begin()
    self.play("n1 shows 2 n0 n1")
    self.hear(1, given.suspects(2, 3))
    self.assertCountEqual(self.agent.roster.suspicions.of("life 1"), ["life 3"])
    self.assertIsNone(self.agent.roster.watch.silent_secs("life 2", 5.0))

  @parameterized.named_parameters(
      ("an_agent_that_is_silent", [(1, messages.Beat(), 1.5)], 2.5),
      ("it_was_never_heard", [], None),
      (
          "its_worker_had_been_silent_when_it_ended",
          [(1, messages.Say(gone="killed", silent_secs=0.25), 3.0), (1, messages.Beat(), 3.5)],
          1.25,
      ),
      ("it_has_handed_over", [(1, messages.Say(gone="handed over"), 3.0)], 1.0),
  )
  def test_how_long_a_lost_node_was_silent(self, heard, secs):
    self.begin(me=2)  # Node 0 proposes.
    for number, message, now in heard:
      self.clock.now = now
      self.hear(number, message)
    self.clock.now = 4.0
    self.do(self.agent._make(members.view(2, 0, 2)))
    self.assertEqual(self.find_view(2).silence_secs, secs)


class ViewsTest(given.AgentCase):

  def test_what_two_say_in_turn_is_not_warned_of_again_and_again(self):
    self.begin()
    for tenth in range(205):
      self.clock.now = tenth / 10
      self.agent._warn(f"No answer.{' Trying again.' * (tenth % 2)}")
    self.assertLen(self.logged, 6)

  def test_a_member_answers_who_asks_and_its_worker_works_on(self):
    self.begin(me=1)
    asked = views.ask(self.view, "n9")
    self.play("n0 asks | away 1 | pass 0.2")
    self.assertEqual(self.find_view(3), views.answer(asked, "n1"))
    self.assertEqual(self.worker.sent, [])
    # Values are posted in the view in which workers are.
    for number in (0, 2):
      self.hear(number, messages.Post(1, "vote", "no"))
    self.hear_worker(messages.Post(1, "vote", "no"))
    values = dict.fromkeys(range(3), "no")
    self.assertEqual(self.worker.sent, [messages.Gathered(1, "vote", values)])

  @parameterized.parameters(1, 2)
  def test_a_newcomer_that_hears_a_copy_first_works_in_the_original(self, count):
    self.begin(me=3)
    self.play("newcomer")
    joined = members.view(2, 0, 1, 2, 3)
    copy = views.ask(joined, "n9")
    for _ in range(count - 1):
      copy = views.answer(copy, "n0")
    self.hear(0, messages.NewView(copy))
    self.assertEqual(self.worker.sent, [messages.NewView(joined)])
    self.assertEqual(self.view, copy)
    self.assertEqual(self.agent.roster.find_view(2), joined)

  def test_a_newcomer_that_hears_a_later_view_works_in_its_first_one_too(self):
    """Others may wait for it there."""
    self.begin(me=3)
    self.play("newcomer")
    found = [self.make_view(members.view(2, 0, 1, 2, 3)), self.make_view(members.view(3, 0, 2, 3))]
    self.hear(0, messages.NewView(found[1]))
    self.run_for(0.2)
    self.assertEqual(self.worker.sent[:2], [*map(messages.NewView, found)])


class FollowTest(given.AgentCase):
  """What it finds in the records."""

  @parameterized.parameters((0, True), (2, True), (3, False), (7, True))
  def test_who_looks_for_agents(self, me, looks):
    """A newcomer, and the first members; all look for views."""
    self.begin(me=me, numbers=range(5))
    self.place.calls.clear()
    self.tell(self.agent._start, self.agent._follow)
    self.run_for(0.1)
    self.assertEqual(self.place.calls[0], ("read", "views/2"))
    self.assertEqual(("keys", "nodes") in self.place.calls, looks)
    self.run_for(0.3)  # A newcomer looks again soon.
    self.assertEqual(self.place.calls.count(("read", "views/2")), 2 if me == 7 else 1)

  def test_agents_that_are_found(self):
    self.begin()
    self.play("n1 shows 2 n0 n1")
    for number in (1, 2, 8):
      self.records.mark(
          f"nodes/life {number}", {"member": json_lib.to_plain(members.member(number))}
      )
    self.do(self.agent._look_for_agents())
    self.assertIn("life 8", self.agent.roster.known)
    # Who was left out may be unable to say that it is gone; and this one shows itself.
    self.assertEqual(self.records.names("nodes"), ["life 0", "life 1", "life 8"])
    self.assertEqual(self.agent.roster.registered, {"life 1", "life 8"})
    there = self.records.find("nodes/life 0")
    self.assertEqual(there["member"], json_lib.to_plain(members.member(0)))

  def test_agents_show_that_they_live_until_there_is_a_member(self):
    self.begin(numbers=())
    for now, is_due in ((10.0, True), (11.0, False), (12.1, True)):
      self.clock.now = now
      self.place.calls.clear()
      self.do(self.agent._look_for_agents())
      self.assertEqual(("put", "nodes/life 0") in self.place.calls, is_due)

  # A run without a live member.

  @parameterized.parameters(0, 1)
  def test_any_other_view_is_an_answer(self, kind):
    first = members.view(1, 0, 1, 2)
    answer = (views.answer(views.ask(first, "n3"), "n1"), members.view(3, 0, 1))[kind]
    self.begin(me=3)
    self.play("newcomer | n0 refuses | n1 refuses | n2 refuses | pass 3.2")
    self.make_view(answer)
    self.run_for(1.0)
    self.assertEqual(self.view, answer)
    self.assertEqual(self.agent._num_answers, 1)
    self.assertIsNone(self.ended)

  def test_it_asks_once_nobody_was_heard_for_long_enough_and_again_after_as_long(self):
    self.begin(me=3)
    asked = []

    async def ask():
      asked.append(self.now)

    self.agent._ask_members, self.agent._find_patience = ask, lambda: 1.0
    for is_over, secs, num_asked in (
        (True, 0.9, 0),
        (False, 0.2, 0),
        (True, 0.9, 0),
        (True, 0.3, 1),
        (True, 0.7, 1),
        (True, 0.3, 2),
    ):
      self.agent._seems_over = lambda is_over=is_over: is_over
      self.run_for(secs)
      self.assertLen(asked, num_asked)

  def test_who_was_answered_waits_for_longer(self):
    self.begin(me=3)
    found = []
    for self.agent._num_answers in (0, 1, 7, 100):
      found.append(self.agent._find_patience() / self.agent.options.limits.most_silence_secs)
    self.assertEqual(found, [1, 2, 8, 8])
