"""Who ends a run of which nobody is left."""

from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import events as events_lib, run_over
from tests import members
from tests.cluster.agent import given


class RunOverTest(given.CoreCase):

  def end_run(self, *, said=(0, 1, 2), is_again=False):
    """Begins to end view 1, whose members are gone; returns flow and view."""
    self.begin(me=3, is_again=is_again)
    self.state.roster.gone = {f"life {n}": "killed" for n in said}
    flow, view = run_over._end_run(self.state), self.state.roster.view
    self.assertEqual(next(flow), given.made_after(1))
    over = views.View(2, (), "no member of view 1 is left")
    self.assertEqual(given.send(flow, [], view), given.claim(over))
    return flow, over

  def test_it_writes_a_view_without_members(self):
    flow, over = self.end_run()
    with self.assertRaises(StopIteration):
      flow.send(given.plain(over))
    self.assertEqual(self.state.roster.view, over)
    self.assertTrue(self.state.must_restart)

  def test_another_was_first(self):
    flow, _ = self.end_run()
    other = members.view(2, 1)
    with self.assertRaises(StopIteration):
      flow.send(given.plain(other))
    self.assertEqual(self.state.roster.view, other)

  def ask(self, *, said=(), is_again=False, asked_by="n3", answer=None):
    """Ends view 1, some of whose members are not heard; returns the last request.

    One is asked until there is an `answer`, or in vain.
    """
    self.begin(me=3, is_again=is_again)
    self.state.roster.gone = {f"life {n}": "killed" for n in said}
    for number in {0, 1, 2} - {*said}:
      self.on(given.refused(number))
    self.on(events_lib.Ticked())
    known = self.state.roster.view
    self.asked_view = asked = views.ask(known, asked_by)
    if asked_by != "n3":
      self.state.roster.adopt(asked)
    flow = run_over._end_run(self.state)
    self.assertEqual(next(flow), given.made_after(known.number + (asked_by != "n3")))
    request = given.send(flow, [], known)
    if asked_by == "n3":
      self.assertEqual(request, given.claim(asked))
      request = flow.send(given.plain(asked))
    self.assertEqual(request, events_lib.Sleep(0.0))
    now, request = 1.0, flow.send(1.0)
    while request == events_lib.Sleep(0.5):
      now += 0.5
      self.assertEqual(flow.send(now), given.made_after(2))
      try:
        request = given.send(flow, [answer] if answer else [], asked)
      except StopIteration:
        return None
    self.assertEqual(now, 11.0)
    return request

  def test_it_is_another_run_if_nobody_is_left_of_the_former_one(self):
    for is_again, said in ((False, ()), (True, ()), (False, (1,))):
      request = self.ask(is_again=is_again, said=said)
      begins = not is_again and not said
      reason = "no member of view 2 is left"
      want = views.View(3, (), reason, run=3 if begins else 0)
      self.assertEqual(request, given.claim(want))

  def test_one_question_counts_for_all_who_ask(self):
    request = self.ask(asked_by="n9")
    self.assertEqual(request.args[0], "views/3")

  def test_any_other_view_is_an_answer(self):
    first = members.view(1, 0, 1, 2)
    for answer in (views.answer(views.ask(first, "n3"), "n1"), members.view(3, 0, 1)):
      self.assertIsNone(self.ask(answer=answer))
      self.assertEqual(self.state.roster.view, answer)
      self.assertEqual(self.state.num_answers, 1)
      self.assertIsNone(self.state.over_secs)

  def test_who_was_answered_waits_for_longer(self):
    self.begin(me=3)
    secs = self.state.options.limits.most_silence_secs
    found = []
    for self.state.num_answers in (0, 1, 7, 100):
      found.append(run_over._patience_secs(self.state) / secs)
    self.assertEqual(found, [1, 2, 8, 8])
