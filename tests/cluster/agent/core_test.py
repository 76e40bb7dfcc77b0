"""What one agent does about what happens to it: events in, actions out."""

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.cluster import detection
from bamboo_jax.cluster import messages
from bamboo_jax.cluster import settle
from bamboo_jax.cluster import stalls as stalls_lib
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import core
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import state as state_lib
from bamboo_jax.cluster.sessions import eras as eras_lib
from bamboo_jax.cluster.store import fence as fence_lib
from bamboo_jax.cluster.store import registry as registry_lib
from tests.cluster.agent import given

_Registry = registry_lib.Registry
_LIMITS = detection.Limits()


def member(number):
  return views.Member(number, f"n{number}", "a", f"life {number}", "h", 1)


def make_view(number, *members, reason="test", **changes):
  return views.View(number, tuple(map(member, members)), reason, **changes)


_LOOK_AT_FENCE = events_lib.Fence("read")


def closed(number):
  return events_lib.PeerClosed(f"life {number}", "closed")


def refused(number):
  return events_lib.PeerFailed(f"life {number}", "refused", is_refused=True)


def silent(number, *whom, count=1, is_certain=False):
  """What a member says of others."""
  suspects = tuple(
      messages.Suspect(f"life {n}", "silent", is_certain) for n in whom
  )
  return said(number, messages.Suspects(count, suspects))


def said(number, message):
  return events_lib.PeerSaid(f"life {number}", message)


class CoreTest(parameterized.TestCase):

  def begin(self, *, me=0, members=(0, 1, 2)):
    """An agent that is a member of view 1, and has nothing to do."""
    options = given.make_options(f"n{me}", limits=_LIMITS)
    self.state = state = state_lib.State(options, incarnation=f"life {me}")
    state.roster.me = member(me)
    state.stamp = "run"
    state.has_worker = True
    state.watch.begin(0.0)
    state.roster.adopt(make_view(1, *members))
    state.has_origin, state.origin = True, 0
    for number in members:
      state.roster.meet(member(number))
      if number != me:
        state.watch.add(f"life {number}", 0.0)
    state.services.use(0)
    flow = state.services.look()
    flow.send(None)
    with self.assertRaises(StopIteration):
      flow.send([])
      flow.send(1000)

  def on(self, event, now=1.0):
    return core.on(self.state, event, now)

  def sent(self, event):
    """Returns what is said to others, and to whom."""
    actions = self.on(event)
    return [
        (a.message, a.to) for a in actions if isinstance(a, events_lib.Send)
    ]

  def asked(self, actions):
    """Returns what is asked for; the flow of the last is kept for `answer`."""
    asks = [a for a in actions if isinstance(a, events_lib.Ask)]
    if asks:
      self.flow = asks[-1].flow
    return [a.request for a in asks]

  def requested(self, event):
    return self.asked(self.on(event))

  def tick(self, now):
    """All live, and a heartbeat passes."""
    for number in range(4):
      self.on(said(number, messages.Beat()), now)
    return self.on(events_lib.Ticked(), now)

  def answer(self, answer=None, error=None, now=1.0):
    return self.on(events_lib.Answered(self.flow, answer, error), now)

  def test_a_closed_connection_is_opened_again(self):
    self.begin()
    actions = self.on(closed(1))
    self.assertEqual(actions[1:], [events_lib.Dial(member(1))])
    (view,) = self.sent(events_lib.PeerReached("life 1"))
    self.assertEqual(view[0], messages.NewView(make_view(1, 0, 1, 2)))
    # At once again: it may have left this one out.
    self.assertEqual(self.asked(self.on(closed(1))), [events_lib.Sleep(0.2)])
    self.assertEqual(self.answer(1.2), [events_lib.Dial(member(1))])

  def test_a_death(self):
    self.begin()
    self.on(closed(1))
    self.assertEqual(self.requested(refused(1)), [events_lib.Sleep(0.2)])
    # Another one is as certain.
    actions = self.on(silent(2, 1, is_certain=True))
    self.assertEqual(self.asked(actions), [events_lib.Sleep(0.0)])
    why = "its agent cannot be reached: refused"
    view = make_view(2, 0, 2, reason=f"n1 left: {why}")
    actions = self.answer(1.0)
    self.assertEqual(
        self.asked(actions), [events_lib.store(_Registry.write_view, view)]
    )
    actions = self.answer(True)
    self.assertEqual(
        actions,
        [
            events_lib.Send(messages.NewView(view)),
            events_lib.Log(f"View 2: n1 left: {why}"),
            events_lib.Cut("life 1"),
            events_lib.TellWorker(messages.NewView(view)),
        ],
    )

  def test_who_alone_is_refused_waits(self):
    self.begin()
    self.assertEqual(self.requested(refused(1)), [events_lib.Sleep(0.2)])
    self.assertEqual(self.asked(self.tick(3.4)), [])
    self.assertEqual(self.asked(self.tick(3.6)), [events_lib.Sleep(0.0)])
    (request,) = self.asked(self.answer(3.6, now=3.6))
    self.assertEqual(request.args[0].numbers, {0, 2})

  def test_the_next_member_acts_if_the_leader_does_not(self):
    self.begin(me=1)
    self.on(said(2, messages.Gone("killed")))
    self.assertEqual(self.asked(self.tick(2.9)), [])
    self.assertEqual(self.asked(self.tick(3.1)), [events_lib.Sleep(0.0)])

  def test_a_minority_lets_others_go_first(self):
    self.begin()
    self.requested(said(1, messages.Gone("killed")))
    self.on(said(2, messages.Gone("killed")))
    self.assertEqual(self.asked(self.answer()), [events_lib.Sleep(1.0)])
    read = events_lib.store(_Registry.read_views, 1)
    self.assertEqual(self.asked(self.answer(2.0)), [read])
    (request,) = self.asked(self.answer([]))
    self.assertEqual(request.method, _Registry.write_view)
    self.assertEqual(request.args[0].numbers, {0})

  def test_a_minority_that_the_others_went_on_without(self):
    self.begin()
    self.asked(self.on(said(1, messages.Gone("killed"))))
    self.on(said(2, messages.Gone("killed")))
    self.asked(self.answer())
    self.asked(self.answer(2.0))
    actions = self.answer([make_view(2, 1, 2, reason="n0 left: silent")])
    reason = "the others go on without it: n0 left: silent"
    self.assertEqual(actions[-1], events_lib.End(reason))
    self.assertEqual(self.on(closed(1)), [])  # Says nothing about them.

  def test_a_proposal_that_comes_second(self):
    self.begin()
    self.asked(self.on(said(1, messages.Gone("gone"))))
    self.asked(self.answer())
    (request,) = self.asked(self.answer(False))
    self.assertEqual(request, events_lib.store(_Registry.read_views, 1))
    self.answer([make_view(2, 0, 2)])
    self.assertEqual(self.state.roster.view.number, 2)

  def test_a_store_that_does_not_answer_is_asked_again(self):
    self.begin()
    self.asked(self.on(said(1, messages.Gone("gone"))))
    first = self.asked(self.answer())
    actions = self.answer(error=OSError("no store."))
    self.assertEqual(
        actions,
        [
            events_lib.Log("no store. Trying again.", is_warning=True),
            events_lib.Ask(self.flow, events_lib.Sleep(0.1)),
        ],
    )
    self.assertEqual(self.asked(self.answer()), first)

  def test_hearsay_cuts_nothing(self):
    self.begin()
    self.assertEqual(self.on(silent(2, 1)), [])
    self.assertEqual(self.asked(self.tick(1.9)), [])
    self.on(silent(2, count=2))  # It was a hiccup.
    self.assertEqual(self.asked(self.tick(2.1)), [])
    self.on(silent(2, 1, count=1))  # Comes late.
    self.assertEqual(self.asked(self.tick(3.9)), [])

  def test_who_is_not_a_member_accuses_nobody(self):
    self.begin()
    self.on(events_lib.PeerCame(member(3)))
    self.on(silent(3, 1, is_certain=True))
    self.assertEqual(self.asked(self.tick(2.9)), [])
    # Nor does it come in, as it cannot reach all.
    self.assertEqual(self.asked(self.on(said(3, messages.Ready(0)))), [])
    trusts = silent(3, count=2)
    self.assertEqual(self.requested(trusts), [events_lib.Sleep(0.0)])

  def test_whose_worker_began_elsewhere_does_not_join(self):
    self.begin()
    self.on(events_lib.PeerCame(member(3)))
    self.assertEqual(self.asked(self.on(said(3, messages.Ready(0, 0)))), [])

  def test_views_that_are_told(self):
    self.begin(me=2)
    self.on(said(0, messages.NewView(make_view(2, 0, 1, 2, 3))))
    self.assertEqual(self.state.roster.view.number, 2)
    skips = said(0, messages.NewView(make_view(4, 0, 2)))
    self.assertEqual(
        self.asked(self.on(skips)), [events_lib.store(_Registry.read_views, 2)]
    )
    self.assertEqual(self.state.roster.view.number, 2)
    self.answer([make_view(3, 0, 2, 3), make_view(4, 0, 2)])
    self.assertEqual(self.state.roster.view.number, 4)

  def test_who_is_reached_is_told_what_it_has_missed(self):
    self.begin()
    view = (messages.NewView(make_view(1, 0, 1, 2)), "life 5")
    self.on(events_lib.PeerCame(member(5)))
    self.assertEqual(self.sent(events_lib.PeerReached("life 5")), [view])
    self.on(events_lib.WorkerSaid(messages.WorkerReady()))
    self.on(events_lib.WorkerSaid(messages.Assignment({"a": 1})))
    self.on(events_lib.Noticed("SIGTERM"))
    ready = (messages.Ready(0, 0), "life 5")
    notice = (messages.Notice("SIGTERM"), "life 5")
    assignment = (messages.Assignment({"a": 1}), "life 5")
    self.assertEqual(
        self.sent(events_lib.PeerReached("life 5")),
        [ready, notice, view, assignment],
    )
    # A member knows who trains what, but may have missed posts.
    post = messages.Post(1, "vote", "yes")
    self.on(events_lib.WorkerSaid(post))
    said = [m for m, _ in self.sent(events_lib.PeerReached("life 1"))]
    self.assertEqual(said[-1], post)
    self.assertNotIn(messages.Assignment({"a": 1}), said)

  def test_values_are_posted_to_all_members(self):
    self.begin(me=1)
    post = messages.Post(1, "vote", "yes")
    self.assertEqual(
        self.sent(events_lib.WorkerSaid(post)),
        [(post, "life 0"), (post, "life 2")],
    )
    self.on(said(0, messages.Post(1, "vote", "no")))
    self.assertEqual(
        self.on(said(2, post)),
        [
            events_lib.TellWorker(
                messages.Gathered(1, "vote", {0: "no", 1: "yes", 2: "yes"})
            )
        ],
    )

  @parameterized.named_parameters(
      ("done", messages.Done(), 0, ""),
      ("failed", None, 1, "its worker ended with exit status 1"),
      ("failed_alone", None, -11, "its worker ended with SIGSEGV"),
  )
  def test_the_end_of_the_worker(self, message, code, reason):
    self.begin(me=1)
    if message:
      self.on(events_lib.WorkerSaid(message))
    actions = self.on(events_lib.WorkerExited(code))
    self.assertEqual(events_lib.End(reason) in actions, code >= 0)
    if code < 0:  # The others go on without it, and then it ends.
      self.assertIn(
          events_lib.Send(messages.Gone(reason, is_workerless=True)), actions
      )
      view = said(0, messages.NewView(make_view(2, 0, 2)))
      self.assertEqual(self.requested(view), [events_lib.Sleep(2.0)])
      self.assertIn(events_lib.End(reason), self.answer(3.0, now=3.0))
    self.assertEqual(self.state.ending.is_near, True)
    self.assertIsNone(self.state.successor)

  def test_nobody_is_left(self):
    self.begin(members=(0, 1))
    self.state.roster.registered = set()
    self.on(said(1, messages.Gone("killed", is_workerless=True)))
    self.on(events_lib.WorkerExited(-9))
    self.assertEqual(self.asked(self.tick(1.0)), [])
    read = events_lib.store(_Registry.read_views, 1)
    self.assertEqual(self.asked(self.tick(2.0)), [read])
    empty = make_view(2, reason="nobody is left of view 1")
    self.assertEqual(
        self.asked(self.answer([])),
        [events_lib.store(_Registry.write_view, empty)],
    )
    self.assertEqual(self.asked(self.answer(True)), [_LOOK_AT_FENCE])
    (claim,) = self.asked(self.answer((fence_lib.Claim("run"), 0)))
    self.assertEqual(claim.args, (fence_lib.Claim("run", 2),))
    actions = self.answer()
    self.assertIn(events_lib.End("nobody is left of view 1"), actions)
    self.assertIs(self.state.successor, self.state.options)

  @parameterized.parameters((7, True), (8, False))
  def test_members_that_merely_cannot_be_reached(self, beat, is_over):
    self.begin(members=(0, 1))
    self.state.roster.registered = set()
    self.on(events_lib.WorkerExited(-9))
    self.on(refused(1))
    self.asked(self.tick(2.0))
    self.asked(self.tick(3.1))
    self.assertEqual(self.asked(self.answer([])), [_LOOK_AT_FENCE])
    self.asked(self.answer((None, 7)))
    self.assertEqual(self.asked(self.answer(9.0)), [_LOOK_AT_FENCE])
    asked = self.asked(self.answer((None, beat)))
    self.assertEqual(bool(asked), is_over)

  @parameterized.parameters(({"life 1"},), (None,))
  def test_whose_lease_lives_is_no_proof_that_all_are_gone(self, registered):
    self.begin(members=(0, 1))
    self.state.roster.registered = registered
    self.on(events_lib.WorkerExited(-9))
    self.on(refused(1))
    for second in range(2, 30):
      self.assertEqual(self.asked(self.tick(second)), [])

  def test_a_stopped_worker_is_killed(self):
    self.begin()
    for tenth in range(11):
      actions = self.on(events_lib.Ticked(is_worker_stopped=True), tenth / 10)
      self.assertNotIn(events_lib.KillWorker(), actions)
    actions = self.on(events_lib.Ticked(is_worker_stopped=True), 1.1)
    self.assertIn(events_lib.KillWorker(), actions)
    actions = self.on(events_lib.WorkerExited(-9), 1.7)
    reason = "its worker was stopped for 1.0 s"
    gone = messages.Gone(reason, is_workerless=True)
    self.assertIn(events_lib.Send(gone), actions)

  def test_silence_is_found_though_it_ticks(self):
    self.begin()
    for tenth in range(1, 31):
      now = tenth / 10
      self.on(said(1, messages.Beat()), now)
      actions = self.on(events_lib.Ticked(), now)
      self.assertEqual(actions, [events_lib.Send(messages.Beat())])
    actions = self.on(events_lib.Ticked(), 3.1)
    (text,) = (a.text for a in actions if isinstance(a, events_lib.Log))
    reason = "its agent was silent for 3.0 s"
    self.assertEqual(text, f"Suspects life 2: {reason}")
    suspect = messages.Suspect("life 2", reason, is_certain=False)
    told = events_lib.Send(messages.Suspects(1, (suspect,)))
    self.assertIn(told, actions)

  def test_who_was_away_blames_nobody(self):
    self.begin()
    self.on(events_lib.Ticked(), 0.1)
    self.assertEqual(
        self.on(events_lib.Ticked(), 9.0), [events_lib.Send(messages.Beat())]
    )

  def test_others_hear_why_nothing_goes_on(self):
    self.begin()
    stall = stalls_lib.Stall(True, 1, settle.Begun((1, 0), (), era=3), ())
    self.on(events_lib.WorkerSaid(messages.WorkerBeat(1, True, stall)))
    self.assertEqual(
        self.sent(events_lib.Ticked()), [(messages.Beat(stall), None)]
    )

  def test_a_doubt_is_settled_by_the_store(self):
    self.begin()
    self.asked(self.on(events_lib.WorkerSaid(messages.Doubt())))
    self.asked(self.answer(error=OSError("no store.")))
    self.asked(self.answer(1.1))
    self.assertEqual(
        self.answer([]), [events_lib.TellWorker(messages.StillMember())]
    )
    self.asked(self.on(events_lib.WorkerSaid(messages.Doubt())))
    actions = self.answer([make_view(2, 1, 2)])
    self.assertNotIn(events_lib.TellWorker(messages.StillMember()), actions)
    self.assertIsInstance(actions[-1], events_lib.End)

  def test_the_status_is_written_once_a_second(self):
    self.begin()
    report = lambda steps: self.on(
        events_lib.WorkerSaid(messages.Report({"steps": steps}))
    )
    self.on(events_lib.WorkerSaid(messages.InEra(0)))
    first = self.asked(report(1))
    self.assertEqual(
        first, [events_lib.store(_Registry.write_status, {"steps": 1})]
    )
    self.assertEqual([*report(2), *report(3)], [])
    self.assertEqual(self.asked(self.answer()), [events_lib.Sleep(1.0)])
    second = self.asked(self.answer())
    self.assertEqual(
        second, [events_lib.store(_Registry.write_status, {"steps": 3})]
    )

  def test_a_dead_service_is_replaced_at_the_next_view(self):
    self.begin()
    self.assertEqual(self.on(events_lib.ServiceLost(0)), [])  # None else yet.
    flow = self.state.services.look()
    flow.send(None)
    flow.send([eras_lib.Era(1, "h:2", 8)])
    with self.assertRaises(StopIteration):
      flow.send(1001)
    self.asked(self.on(said(2, messages.Ready(1))))
    (request,) = self.asked(self.answer())
    self.assertEqual(request.args[0].era, 1)

  def test_an_agent_that_does_not_fit_ends(self):
    options = given.make_options("n7")
    self.state = state_lib.State(options, incarnation="life 7")
    self.asked(self.on(events_lib.Began()))
    error = ValueError("config.seed is 0 there and 1 here")
    self.assertEqual(self.answer(error=error), [events_lib.End(error=error)])


if __name__ == "__main__":
  absltest.main()
