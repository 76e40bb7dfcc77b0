"""Who ends a run of which nobody is left."""

from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import events as events_lib, run_over
from bamboo_jax.cluster.store import registry as registry_lib
from tests import members
from tests.cluster.agent import given


class RunOverTest(given.CoreCase):

  def end_run(self):
    """Begins to end view 1, whose members are gone; returns flow and view."""
    self.begin(me=3)
    self.state.roster.gone = {f"life {n}": "killed" for n in range(3)}
    self.state.roster.registered = set()
    flow = run_over._end_run(self.state)
    self.assertEqual(next(flow), given.made_after(1))
    request = flow.send([])
    self.assertEqual(request.method, registry_lib.Registry.read_views)
    over = views.View(2, (), "no member of view 1 is left")
    self.assertEqual(flow.send([]), given.claim(over))
    return flow, over

  def test_it_writes_a_view_without_members(self):
    flow, over = self.end_run()
    request = flow.send(over)
    self.assertEqual(request.method, registry_lib.Registry.write_view)
    self.assertIsInstance(flow.send(True), events_lib.CallFence)  # A new life.

  def test_another_has_ended_it_and_begun_anew_meanwhile(self):
    flow, over = self.end_run()
    flow.send(over)  # The store is away for long.
    for view in (over, members.view(3, 9)):
      self.state.roster.adopt(view)
    with self.assertRaises(StopIteration):
      flow.send(False)
    self.assertEqual(self.state.roster.view, members.view(3, 9))

  def ask(self, *, has_asked=False):
    """Begins to ask the members of view 1, who are not heard; returns flow."""
    self.begin(me=3)
    asked = views.ask(self.state.roster.view, "n9" if has_asked else "n3")
    if has_asked:
      self.state.roster.adopt(asked)
    return run_over._ask_in_vain(self.state), asked

  def finish(self, flow, found):
    """Waits for an answer, `found` in the folder; returns if it was in vain."""
    secs = self.state.options.limits.most_silence_secs
    self.assertEqual(self.request, events_lib.Sleep(secs))
    self.assertEqual(flow.send(secs), given.made_after(2))
    with self.assertRaises(StopIteration) as end:
      if (request := flow.send(found)).args == (2,):  # The store.
        flow.send([])
      self.fail(request)
    return end.exception.value

  def test_who_asks_first_writes_it(self):
    for answers in (0, 1):
      flow, asked = self.ask()
      self.assertEqual(next(flow), given.claim(asked))
      flow.send(asked)
      self.request = flow.send(True)
      found = [views.answer(asked, "n1")] * answers
      self.assertEqual(self.finish(flow, found), not answers)

  def test_one_question_counts_for_all_who_ask(self):
    flow, asked = self.ask(has_asked=True)
    self.request = next(flow)
    self.assertTrue(self.finish(flow, []))
    flow, _ = self.ask()
    self.assertEqual(
        next(flow), given.claim(asked_by_me := views.ask(members.view(1, 0, 1, 2), "n3"))
    )
    self.assertNotEqual(asked, asked_by_me)
    flow.send(asked)  # Another was first.
    self.request = flow.send(True)
    self.assertTrue(self.finish(flow, []))

  def test_a_view_that_is_no_question_is_an_answer(self):
    for made in (members.view(2, 0, 1), views.void(members.view(1, 0, 1, 2))):
      flow, _ = self.ask()
      next(flow)
      flow.send(made)
      with self.assertRaises(StopIteration) as end:
        flow.send(True)
      self.assertFalse(end.exception.value)
      self.assertEqual(self.state.roster.view, made)

  def test_who_was_answered_waits_for_longer(self):
    self.begin(me=3)
    secs = self.state.options.limits.most_silence_secs
    found = []
    for self.state.num_answers in (0, 1, 7, 100):
      found.append(run_over._patience_secs(self.state) / secs)
    self.assertEqual(found, [1, 2, 8, 8])
