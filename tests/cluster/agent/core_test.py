"""What one agent does about what happens to others: events in, actions out."""

import contextlib
import dataclasses

from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import judge, messages, views
from bamboo_jax.cluster.agent import events as events_lib, membership
from tests import members
from tests.cluster.agent import given


class CoreTest(given.CoreCase):

  def test_a_closed_connection_is_opened_again(self):
    self.begin()
    actions = self.on(given.closed(1))
    self.assertEqual(actions[1:], [events_lib.DialAgent(members.member(1))])
    (view,) = self.sent(events_lib.PeerReached("life 1"))
    self.assertEqual(view[0], messages.NewView(members.view(1, 0, 1, 2)))
    # At once again: it may have left this one out.
    self.assertEqual(self.asked(self.on(given.closed(1))), [events_lib.Sleep(0.2)])
    self.assertEqual(self.answer(1.2), [events_lib.DialAgent(members.member(1))])

  def test_a_death(self):
    self.begin()
    self.on(given.closed(1))
    self.assertEqual(self.requested(given.refused(1)), [events_lib.Sleep(0.2)])
    # Another one is as certain, and what comes at once is decided at once.
    actions = self.on(given.silent(2, 1, is_certain=True))
    self.assertEqual(self.asked(actions), [events_lib.Sleep(0.005)])
    self.assertEqual(self.on(given.silent(2, 1, count=2, is_certain=True)), [])
    self.assertEqual(self.asked(self.answer(1.0)), [events_lib.Sleep(0.0)])
    why = "its agent cannot be reached: refused"
    view = members.view(2, 0, 2, reason=f"n1 left: {why}")
    actions = self.answer(1.0)
    self.assertEqual(self.asked(actions), [given.claim(view)])
    self.assertEqual(
        self.answer(view)[:4],
        [
            events_lib.Send(messages.NewView(view)),
            events_lib.Log(f"View 2: n1 left: {why}"),
            events_lib.Cut("life 1"),
            events_lib.TellWorker(messages.NewView(view)),
        ],
    )

  @parameterized.parameters(True, False)
  def test_a_death_waits_for_who_is_tried_again(self, is_reached):
    """Whoever died at once belongs to the same view."""
    self.begin(numbers=(0, 1, 2, 3))
    self.on(given.closed(1))
    if is_reached:
      self.on(events_lib.PeerReached("life 1"))
    asked = self.asked(self.on(given.said(2, messages.Gone("test")), 1.01))
    self.assertEqual(events_lib.Sleep(0.0) in asked, is_reached)

  def test_who_alone_is_refused_waits(self):
    self.begin()
    self.tick(1.0)
    self.assertEqual(self.requested(given.refused(1)), [events_lib.Sleep(0.2)])
    for tenth in range(11, 40):
      self.assertEqual(self.asked(self.tick(0.1 * tenth)), [])
    self.assertEqual(self.asked(self.tick(4.1)), [events_lib.Sleep(0.0)])
    (request,) = self.asked(self.answer(4.1, now=4.1))
    self.assertEqual([m["number"] for m in request.args[1]["members"]], [0, 2])

  def test_what_waits_does_not_while_the_agent_is_away(self):
    self.begin()
    self.tick(1.0)
    self.on(given.silent(2, 1), 1.0)
    for now in (1.4, 1.8, 2.2):  # Each is too short to count as away.
      self.assertEqual(self.asked(self.tick(now)), [])
    for now in (2.3, 2.4, 2.5):
      self.assertEqual(self.asked(self.tick(now)), [])
    self.assertEqual(self.asked(self.tick(2.7)), [events_lib.Sleep(0.0)])

  def test_who_does_not_refuse_any_more_may_be_busy(self):
    self.begin()

    def pass_time(first, last):  # Node 1 says nothing.
      for tenth in range(first, last):
        self.on(given.said(2, messages.Beat()), 0.1 * tenth)
        actions = self.on(events_lib.Ticked(), 0.1 * tenth)
        self.assertEqual(self.asked(actions), [])
      return [message for message, _ in given.find_sent(actions)]

    self.on(given.refused(1))
    pass_time(11, 39)
    actions = self.on(events_lib.PeerAccepted("life 1"), 3.9)
    self.assertIn(events_lib.Send(messages.Suspects(2, ())), actions)
    said = pass_time(39, 70)
    (suspect,) = said[-1].suspects
    self.assertEqual(suspect.reason, "its agent was silent for 3.0 s")

  def test_who_was_away_looks_again(self):
    self.begin()
    self.on(given.refused(1))
    self.assertEqual(self.asked(self.tick(3.6)), [])  # The first for long.
    for tenth in range(37, 66):
      self.assertEqual(self.asked(self.tick(0.1 * tenth)), [])
    self.assertEqual(self.asked(self.tick(6.7)), [events_lib.Sleep(0.0)])

  def test_who_is_heard_again_is_not_left_out_at_once(self):
    self.begin()
    self.on(given.silent(2, 1, count=1))
    beat = lambda number, now: self.on(given.said(number, messages.Beat()), now)
    for tenth in range(11, 31):
      beat(2, 0.1 * tenth)
      actions = self.on(events_lib.Ticked(), 0.1 * tenth)
      self.assertEqual(self.asked(actions), [])  # Another is quiet.
    beat(1, 3.1)
    for tenth in range(32, 41):
      self.assertEqual(self.asked(self.tick(0.1 * tenth)), [])
    self.assertEqual(self.asked(self.tick(4.2)), [events_lib.Sleep(0.0)])

  @parameterized.named_parameters(
      ("an_agent_that_is_silent", [(1, messages.Beat(), 1.5)], 2.5),
      ("it_was_never_heard", [], None),
      ("a_silence_that_is_excused", [(1, messages.Beat(), 0.5)], 3.5),
      (
          "its_worker_had_been_silent_when_it_ended",
          [(1, messages.Gone("killed", silent_secs=0.25), 3.0)]
          + [(1, messages.Beat(), 3.5)],  # Of its agent.
          1.25,
      ),
      ("it_has_handed_over", [(1, messages.Gone("handed over"), 3.0)], 1.0),
  )
  def test_how_long_a_lost_node_was_silent(self, heard, secs):
    self.begin()
    for number, message, now in heard:
      self.on(given.said(number, message), now)
    self.state.watch.excuse("life 1", 3.9)
    view = messages.NewView(members.view(2, 0, 2))
    told = [
        action.message
        for action in self.on(given.said(2, view), 4.0)
        if isinstance(action, events_lib.TellWorker)
    ]
    silent = [messages.Silent(2, {1: secs})] if secs is not None else []
    self.assertEqual(told[: len(silent) + 1], [*silent, view])
    # Nothing is kept of the dead.
    self.assertIsNone(self.state.watch.silent_secs("life 1", 5.0))

  def test_the_next_member_acts_if_the_leader_does_not(self):
    self.begin(me=1)
    self.on(given.said(2, messages.Gone("killed")))
    self.assertEqual(self.asked(self.tick(2.9)), [])
    self.assertEqual(self.asked(self.tick(3.1)), [events_lib.Sleep(0.0)])

  def test_a_minority_lets_others_go_first(self):
    self.begin()
    self.requested(given.said(1, messages.Gone("killed")))
    self.on(given.said(2, messages.Gone("killed")))
    self.assertEqual(self.asked(self.answer()), [events_lib.Sleep(1.0)])
    (request,) = self.asked(self.answer(2.0))
    why = "n1 left: killed; n2 left: killed"
    self.assertEqual(request, given.claim(members.view(2, 0, reason=why)))

  def test_a_minority_that_the_others_went_on_without(self):
    self.begin()
    self.asked(self.on(given.said(1, messages.Gone("killed"))))
    self.on(given.said(2, messages.Gone("killed")))
    self.asked(self.answer())
    self.asked(self.answer(2.0))
    made = members.view(2, 1, 2, reason="n0 left: silent")
    actions = self.answer(made)
    reason = "the others continue without it: n0 left: silent"
    self.assertEqual(actions[-1], events_lib.End(reason))
    self.assertEqual(self.on(given.closed(1)), [])  # Says nothing about them.

  def test_a_proposal_that_comes_second(self):
    self.begin()
    self.asked(self.on(given.said(1, messages.Gone("gone"))))
    self.assertLen(self.asked(self.answer()), 1)
    other = members.view(2, 0, 2, reason="n2 was first")
    self.assertEqual(self.answer(other)[1].text, "View 2: n2 was first")
    self.assertEqual(self.state.roster.view, other)

  def test_a_folder_that_does_not_answer_is_asked_again(self):
    self.begin()
    self.asked(self.on(given.said(1, messages.Gone("gone"))))
    first = self.asked(self.answer())
    actions = self.answer(error=OSError("no folder."))
    self.assertEqual(
        actions,
        [
            events_lib.Log("no folder. Trying again.", is_warning=True),
            events_lib.Ask(self.flow, events_lib.Sleep(0.1)),
        ],
    )
    self.assertEqual(self.asked(self.answer()), first)

  @parameterized.parameters((False, 15.0), (True, 300.0))
  def test_a_judge_that_is_away_is_waited_for(self, is_again, secs):
    self.begin(is_again=is_again)
    request = events_lib.CallJudge("find", ("run/0",))
    flow = self.state.ask(judge.call, "find", "run/0")
    self.assertEqual(next(flow), request)
    for now in (1.0, 0.9 + secs):
      self.assertEqual(flow.throw(OSError("away.")), events_lib.Sleep(0.1))
      self.assertEqual(flow.send(now), request)
    flow.throw(OSError("away."))
    with self.assertRaisesRegex(OSError, "away."):
      flow.send(1.0 + secs)

  def test_who_has_lost_its_records_goes_on_from_nothing(self):
    self.begin()
    self.asked(self.on(given.said(1, messages.Gone("gone"))))
    (ask,) = self.answer()
    self.assertEqual(ask.request, given.find(members.view(1, 0, 1, 2)))
    for there in (None, members.view(1, 0, 1)):  # An empty folder, or another's.
      log, again = self.answer(there)[:2]
      self.assertIn("have lost view 1", log.text)
      self.assertEqual(again.request, events_lib.Sleep(0.1))
      self.state._warned_secs = {}
      self.assertEqual(self.answer(), [ask])

  def test_what_two_say_in_turn_is_not_warned_of_again_and_again(self):
    self.begin()
    said = []
    for tenth in range(205):
      self.state.now, self.state.actions = tenth / 10, []
      self.state.warn(f"No answer.{' Trying again.' * (tenth % 2)}")
      said += [tenth] * bool(self.state.actions)
    self.assertEqual(said, [0, 1, 100, 101, 200, 201])

  def look(self):
    """Looks at the records, which have no new view; returns what is asked then."""
    self.state.start(membership.look(self.state))
    self.assertEqual(self.asked(self.state.actions), [given.made_after(1)])
    return self.asked(self.answer([]))

  @parameterized.parameters((0, True), (2, True), (3, False), (7, True))
  def test_who_looks_for_agents(self, me, looks):
    """A newcomer, and the first members; all look for views."""
    self.begin(me=me, numbers=range(5))
    names = events_lib.CallJudge("names", ("nodes",))
    wait = events_lib.Sleep(0.2 if me == 7 else 2.0)
    self.assertEqual(self.look(), [names if looks else wait])

  def test_an_agent_that_is_found(self):
    self.begin()
    self.look()
    self.on(given.said(1, messages.NewView(members.view(2, 0, 1))))  # Without n2.
    asked = self.asked(self.answer(["life 0", "life 1", "life 2", "life 8", "life 9"]))
    self.assertEqual(asked, [events_lib.CallJudge("find", ("nodes/life 8",))])
    asked = self.asked(self.answer({"member": json_lib.to_plain(members.member(8))}))
    self.assertEqual(asked, [events_lib.CallJudge("find", ("nodes/life 9",))])
    # It has left just now; and who was left out may be unable to say that it is gone.
    self.assertEqual(self.asked(self.answer()), [events_lib.CallJudge("drop", ("nodes/life 2",))])
    self.assertIn(events_lib.DialAgent(members.member(8)), self.answer())
    self.assertEqual(self.state.roster.registered, {f"life {n}" for n in (0, 1, 8, 9)})

  def test_a_mark_that_another_has_removed_is_made_again(self):
    self.begin()
    self.look()
    (request,) = self.asked(self.answer(["life 1"]))
    self.assertEqual((request.method, request.args[0]), ("mark", "nodes/life 0"))
    self.assertEqual(request.args[1]["member"], json_lib.to_plain(members.member(0)))

  def test_agents_show_that_they_live_until_there_is_a_member(self):
    self.begin(numbers=())
    for now, is_due in ((10.0, True), (11.0, False), (12.0, True)):
      flow = membership._look_for_agents(self.state)
      next(flow)
      self.state.now = now
      with self.assertRaises(StopIteration) if not is_due else contextlib.nullcontext():
        self.assertEqual(flow.send(["life 0"]).method, "mark")

  def test_who_refuses_and_is_no_member_has_left(self):
    self.begin()
    self.on(events_lib.PeerCame(members.member(5)))
    drop = events_lib.CallJudge("drop", ("nodes/life 5",))
    self.assertEqual(self.requested(given.refused(5)), [drop])
    self.assertNotIn("life 5", self.state.roster.known)
    self.assertNotIn(drop, self.requested(given.refused(1)))

  @parameterized.parameters((0, 3, True), (3, 0, False))
  def test_two_nodes_with_one_name(self, first, second, ends):
    """The later one ends."""
    self.begin(me=second)
    self.state.roster.me = dataclasses.replace(members.member(second), name="same")
    other = dataclasses.replace(members.member(first), name="same")
    self.state.roster.known[other.incarnation] = other
    actions = self.on(events_lib.PeerReached(other.incarnation))
    found = [f"{a.error}" for a in actions if isinstance(a, events_lib.End)]
    why = "Another node 'same' of this run is alive; give each node its own name."
    self.assertEqual(found, [why] * ends)

  def test_hearsay_cuts_nothing(self):
    self.begin()
    self.assertEqual(self.on(given.silent(2, 1)), [])
    self.assertEqual(self.asked(self.tick(1.9)), [])
    self.on(given.silent(2, count=2))  # It was a hiccup.
    self.assertEqual(self.asked(self.tick(2.1)), [])
    self.on(given.silent(2, 1, count=1))  # Comes late.
    self.assertEqual(self.asked(self.tick(3.9)), [])

  def test_of_who_was_left_out_nothing_is_kept(self):
    self.begin()
    self.on(given.said(1, messages.NewView(members.view(2, 0, 1))))
    self.on(given.silent(1, 2, 3))
    self.assertCountEqual(self.state.suspicions.of("life 1"), ["life 3"])

  def test_who_is_not_a_member_accuses_nobody(self):
    self.begin()
    self.on(events_lib.PeerCame(members.member(3)))
    self.on(given.silent(3, 1, is_certain=True))
    self.assertEqual(self.asked(self.tick(2.9)), [])
    # Nor does it come in, as it cannot reach all.
    ready = given.said(3, messages.Ready())
    self.assertEqual(self.asked(self.on(ready, 3.0)), [])
    actions = self.on(given.silent(3, count=2), 3.1)
    self.assertEqual(self.asked(actions), [events_lib.Sleep(0.0)])

  def test_who_comes_is_ready_when_it_knows_whom_it_reaches(self):
    self.begin(me=3)
    self.on(events_lib.PeerReached("life 0"))
    self.on(events_lib.PeerFailed("life 1", "no answer"))
    actions = self.on(events_lib.WorkerSaid(messages.WorkerReady()))
    self.assertEqual(self.asked(actions), [events_lib.Sleep(0.1)])
    self.assertEqual(self.asked(self.answer(1.0)), [events_lib.Sleep(0.1)])
    self.on(events_lib.PeerReached("life 2"))
    ready = events_lib.Send(messages.Ready(0))
    self.assertIn(ready, self.answer(1.0))

  def test_whose_worker_began_elsewhere_does_not_join(self):
    self.begin()
    self.on(events_lib.PeerCame(members.member(3)))
    self.assertEqual(self.asked(self.on(given.said(3, messages.Ready(0)))), [])

  def test_views_that_are_told(self):
    self.begin(me=2)
    self.on(given.said(0, messages.NewView(members.view(2, 0, 1, 2, 3))))
    self.assertEqual(self.state.roster.view.number, 2)
    skips = given.said(0, messages.NewView(members.view(4, 0, 2)))
    self.assertEqual(self.asked(self.on(skips)), [given.made_after(2)])
    self.assertEqual(self.state.roster.view.number, 2)
    self.answer([members.view(3, 0, 2, 3), members.view(4, 0, 2)])
    self.assertEqual(self.state.roster.view.number, 4)

  def test_a_member_answers_who_asks_and_its_worker_works_on(self):
    self.begin(me=1)
    asked = views.ask(self.state.roster.view, "n9")
    answer = views.answer(asked, "n1")
    actions = self.on(given.said(0, messages.NewView(asked)))
    self.assertIn(given.claim(answer), self.asked(actions))
    actions += self.answer(error=OSError("no folder."))
    self.assertEqual(self.asked(self.answer(2.0)), [given.claim(answer)])
    other = views.answer(asked, "n0")  # It was first.
    actions += self.answer(other)
    self.assertEqual(self.state.roster.view, other)
    told = [a for a in actions if isinstance(a, events_lib.TellWorker)]
    self.assertEqual(told, [])
    # Values are posted in the view in which workers are.
    for number in (0, 2):
      self.on(given.said(number, messages.Post(1, "vote", "no")))
    post = events_lib.WorkerSaid(messages.Post(1, "vote", "no"))
    values = dict.fromkeys(range(3), "no")
    self.assertIn(events_lib.TellWorker(messages.Gathered(1, "vote", values)), self.on(post))

  def test_who_has_no_worker_and_who_is_no_member_do_not_answer(self):
    for me in (1, 3):
      self.begin(me=me)
      if me == 1:
        self.on(events_lib.WorkerExited(-9))
      asked = views.ask(self.state.roster.view, "n9")
      actions = self.on(given.said(0, messages.NewView(asked)))
      self.assertEqual(self.state.roster.view, asked)
      answer = given.claim(views.answer(asked, f"n{me}"))
      self.assertNotIn(answer, self.asked(actions))

  @parameterized.parameters(1, 2)
  def test_a_newcomer_that_hears_a_copy_first_works_in_the_original(self, count):
    self.begin(me=3)
    self.state.origin = None
    joined = members.view(2, 0, 1, 2, 3)
    copy = views.ask(joined, "n9")
    for _ in range(count - 1):
      copy = views.answer(copy, "n0")
    actions = self.on(given.said(0, messages.NewView(copy)))
    told = [a for a in actions if isinstance(a, events_lib.TellWorker)]
    self.assertEqual(told, [events_lib.TellWorker(messages.NewView(joined))])
    self.assertEqual(self.state.roster.view, copy)
    self.assertEqual(self.state.roster.find_view(2), joined)

  def test_who_is_reached_is_told_what_it_has_missed(self):
    self.begin()
    view = (messages.NewView(members.view(1, 0, 1, 2)), "life 5")
    self.on(events_lib.PeerCame(members.member(5)))
    self.assertEqual(self.sent(events_lib.PeerReached("life 5")), [view])
    for number in (1, 2):
      self.on(events_lib.PeerReached(f"life {number}"))
    self.on(events_lib.WorkerSaid(messages.WorkerReady()))
    self.on(events_lib.WorkerSaid(messages.Assignment({"a": 1})))
    self.on(events_lib.Noticed("SIGTERM"))
    ready = (messages.Ready(0), "life 5")
    notice = (messages.Notice("SIGTERM"), "life 5")
    assignment = (messages.Assignment({"a": 1}), "life 5")
    self.assertEqual(self.sent(events_lib.PeerReached("life 5")), [ready, notice, view, assignment])
    # A member knows who trains what, but may have missed posts.
    post = messages.Post(1, "vote", "yes")
    self.on(events_lib.WorkerSaid(post))
    said = [m for m, _ in self.sent(events_lib.PeerReached("life 1"))]
    self.assertEqual(said[-1], post)
    self.assertNotIn(messages.Assignment({"a": 1}), said)

  def test_values_are_posted_to_all_members(self):
    self.begin(me=1)
    post = messages.Post(1, "vote", "yes")
    self.assertEqual(self.sent(events_lib.WorkerSaid(post)), [(post, "life 0"), (post, "life 2")])
    self.on(given.said(0, messages.Post(1, "vote", "no")))
    self.assertEqual(
        self.on(given.said(2, post)),
        [events_lib.TellWorker(messages.Gathered(1, "vote", {0: "no", 1: "yes", 2: "yes"}))],
    )
