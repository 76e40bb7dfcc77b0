"""What one agent does about its worker, and when nobody else is left."""

from absl.testing import parameterized

from bamboo_jax import base, config
from bamboo_jax.cluster import messages, views
from bamboo_jax.cluster.agent import events as events_lib, membership, selection, state as state_lib
from tests import members
from tests.cluster.agent import given


class OwnWorkerTest(given.CoreCase):

  @parameterized.named_parameters(
      ("done", messages.Done(), 0, ""),
      ("failed", None, 1, "its worker ended with exit status 1"),
      ("failed_alone", None, -11, "its worker was killed by SIGSEGV"),
  )
  def test_the_end_of_the_worker(self, message, code, reason):
    self.begin(me=1)
    if message:
      self.on(events_lib.WorkerSaid(message))
    actions = self.on(events_lib.WorkerExited(code))
    if code > 0:  # Has the run begun anew?
      self.assertEqual(self.asked(actions), [given.made_after(1)])
      actions = self.answer([])
    self.assertEqual(events_lib.End(reason) in actions, code >= 0)
    if code < 0:  # The others go on without it, and then it ends.
      gone = messages.Gone(reason, silent_secs=1.0)
      self.assertIn(events_lib.Send(gone), actions)
      view = given.said(0, messages.NewView(members.view(2, 0, 2)))
      self.assertEqual(self.requested(view), [events_lib.Sleep(2.0)])
      self.answer(3.0, now=3.0)
      self.assertFalse(self.state.is_ending)  # Nobody has said so since.
      self.on(given.said(2, messages.Beat()), now=3.0)
      self.assertIn(events_lib.End(reason), self.answer(3.1, now=3.1))
    self.assertEqual(self.state.is_ending, True)
    self.assertFalse(self.state.must_restart)

  @parameterized.parameters(
      # Exit status, whether it joined others or is in the view, and whether
      # the user must mend something: no other try would succeed.
      (2, 0, False, True),  # As the run begins.
      (2, None, True, True),
      (2, None, False, False),  # A newcomer, beside others that train.
      (1, 0, True, False),
      (3, 0, True, False),
  )
  def test_a_mistake_of_the_user(self, code, origin, is_member, is_mistake):
    self.begin(me=1, numbers=(0, 1, 2) if is_member else (0, 2))
    self.state.origin = origin
    self.on(events_lib.WorkerExited(code))
    self.assertEqual(self.state.is_mistake, is_mistake)

  def test_an_error_that_ends_the_run(self):
    """Each agent ends with it, also one that is no member."""
    said = messages.Failed("no such layer")
    for me, event in (
        (1, events_lib.WorkerSaid(said)),
        (1, given.said(0, said)),
        (3, given.said(0, said)),
    ):
      self.begin(me=me)
      actions = self.on(event)
      (end,) = [a for a in actions if isinstance(a, events_lib.End)]
      self.assertIsInstance(end.error, base.RunFailedError)
      self.assertEqual(f"{end.error}", "no such layer")
      is_own = isinstance(event, events_lib.WorkerSaid)
      self.assertEqual(events_lib.Send(said) in actions, is_own)
    self.begin(me=0, numbers=(0, 1))
    self.assertEqual(self.on(given.said(2, said)), [])  # It is no member.

  def test_the_last_words_of_the_worker_are_read_after_its_exit(self):
    self.begin(me=1)
    self.asked(self.on(events_lib.WorkerExited(0)))
    self.on(events_lib.WorkerSaid(messages.Done()))
    actions = self.answer([])
    said = events_lib.Send(messages.Done())
    self.assertEqual(actions, [said, events_lib.End()])

  @parameterized.named_parameters(
      ("who_came_when_others_were_done", (), True),
      ("who_did_not_hear_what_one_said_last", (0, 1), True),
      ("who_finishes_with_them_and_still_writes", (0, 1, 2), False),
  )
  def test_ends_when_others_are_done(self, finish, ends):
    self.begin(me=1, numbers=(0, 1, 2))
    post = messages.Post(1, messages.FINISHED, None)
    for number in finish:
      said = events_lib.WorkerSaid(post)
      self.on(said if number == 1 else given.said(number, post))
    self.on(given.said(0, messages.Done()))
    requests = self.requested(events_lib.Ticked())
    wait = events_lib.Sleep(self.state.options.limits.most_silence_secs)
    self.assertEqual(wait in requests, ends)
    if ends:
      self.assertIn(events_lib.End(), self.answer(20.0, now=20.0))

  def test_who_is_done_is_left_out_with_the_dead(self):
    self.begin(me=1, numbers=(0, 1, 2, 3))
    self.on(given.said(0, messages.Done()))
    self.asked(self.on(given.said(2, messages.Gone("killed"))))
    (request,) = self.asked(self.answer())
    want = members.view(2, 1, 3, reason="n0 left: it is done; n2 left: killed")
    self.assertEqual(request, given.claim(want))

  def test_nobody_joins_a_run_that_is_done(self):
    self.begin()
    self.state.roster.meet(members.member(3))
    self.on(given.said(1, messages.Done()))
    self.on(given.said(3, messages.Ready()))
    self.assertEqual(selection.find_newcomers(self.state), [])

  def test_the_worker_ends_because_another_run_has_the_folder(self):
    self.begin(me=1)
    self.requested(events_lib.WorkerExited(1))
    actions = self.answer([views.begin_run(self.state.roster.view, "another begins")])
    self.assertIn(events_lib.End("another run has begun in the folder"), actions)
    self.assertTrue(self.state.must_restart)

  def test_the_worker_ends_because_the_run_has_begun_anew(self):
    self.begin(me=1)
    self.requested(events_lib.WorkerExited(1))
    empty = members.view(2, reason="no member of view 1 is left")
    actions = self.answer([empty])
    self.assertIn(events_lib.End("no member of view 1 is left"), actions)
    self.assertTrue(self.state.must_restart)

  def test_nobody_is_left(self):
    self.begin(numbers=(0, 1))
    self.on(given.said(1, messages.Gone("killed")))
    self.on(events_lib.WorkerExited(-9))
    self.assertEqual(self.asked(self.tick(1.0)), [])
    self.assertEqual(self.asked(self.tick(2.0)), [given.made_after(1)])
    empty = members.view(2, reason="no member of view 1 is left")
    self.assertEqual(self.asked(self.answer([])), [given.claim(empty)])
    actions = self.answer(empty)
    self.assertIn(events_lib.End("no member of view 1 is left"), actions)
    self.assertTrue(self.state.must_restart)

  def test_somebody_was_first_to_go_on(self):
    self.begin(numbers=(0, 1))
    self.on(given.said(1, messages.Gone("killed")))
    self.on(events_lib.WorkerExited(-9))
    for now in (1.0, 2.0):
      self.asked(self.tick(now))
    self.asked(self.answer([]))
    other = members.view(2, 1, reason="n0 left: killed")
    self.answer(other)
    self.assertEqual(self.state.roster.view, other)
    self.assertFalse(self.state.must_restart)

  @parameterized.parameters(True, False)
  def test_members_that_merely_cannot_be_reached(self, is_over):
    self.begin(numbers=(0, 1))
    self.on(events_lib.WorkerExited(-9))
    self.on(given.refused(1))
    self.asked(self.tick(2.0))
    self.asked(self.tick(3.1))
    asked = views.ask(members.view(1, 0, 1), "n0")
    self.assertEqual(self.asked(self.answer([])), [given.claim(asked)])
    self.assertEqual(self.asked(self.answer(asked)), [events_lib.Sleep(0.0)])
    self.asked(self.answer(3.1))
    self.assertEqual(self.asked(self.answer(13.1)), [given.made_after(2)])
    requests = self.asked(self.answer([] if is_over else [views.answer(asked, "n1")]))
    empty = members.view(3, reason="no member of view 2 is left")
    self.assertEqual(given.claim(empty) in requests, is_over)
    self.assertEqual(self.state.num_answers, int(not is_over))

  def test_a_slow_worker_hands_over(self):
    self.begin()
    self.on(events_lib.WorkerSaid(messages.WorkerReady()))
    actions = self.on(events_lib.WorkerSaid(messages.Slow("it is slow")))
    self.assertIn(events_lib.Send(messages.Notice("it is slow")), actions)

  def test_a_stopped_worker_is_killed(self):
    self.begin()
    for tenth in range(11):
      actions = self.on(events_lib.Ticked(is_worker_stopped=True), tenth / 10)
      self.assertNotIn(events_lib.KillWorker(), actions)
    actions = self.on(events_lib.Ticked(is_worker_stopped=True), 1.1)
    self.assertIn(events_lib.KillWorker(), actions)
    actions = self.on(events_lib.WorkerExited(-9), 1.7)
    reason = "its worker was stopped for 1.0 s"
    gone = messages.Gone(reason, silent_secs=1.7)
    self.assertIn(events_lib.Send(gone), actions)

  @parameterized.parameters((0, 61), (59, 120))
  def test_a_worker_that_imports_is_killed_once_it_rests(self, until, killed):
    self.begin(limits=config.ClusterSection(1.0, 2.0))
    self.state.watch.begin(0.0)
    for now in range(200):
      tick = events_lib.Ticked(is_worker_busy=now <= until)
      if events_lib.KillWorker() in self.on(tick, now):
        break
    self.assertEqual(now, killed)

  @parameterized.parameters(("answers", 15), ("fails", 75), ("hangs", 75))
  def test_a_worker_that_waits_for_the_folder(self, it, killed_secs):
    """All others wait for it from second 1 on, for 13 s; it is then killed."""
    limits = config.ClusterSection(1.0, 2.0, no_progress_secs=13.0)
    self.begin(numbers=(0, 1), limits=limits)
    self.state.watch.begin(0.0, is_ready=True)
    self.on(events_lib.Ticked(), 0.0)
    self.state.start(membership.look(self.state))
    self.asked(self.state.actions)

    def read(now):
      self.answer([], now=now)
      self.answer(["life 0"], now=now)

    read(0.0)
    for now in range(1, 100):
      beat = messages.WorkerBeat(1, False)
      self.on(events_lib.WorkerSaid(beat), now)
      self.on(given.said(1, messages.Beat()), now)
      if now == 2 or it != "hangs" and now % 2 == 0:  # It looks at the folder.
        self.answer(now, now=now)
        if it == "answers":
          read(now)
        elif it == "fails":
          self.answer(error=OSError("Input/output error"), now=now)
      if events_lib.KillWorker() in self.on(events_lib.Ticked(), now):
        break
    self.assertEqual(now, killed_secs)

  def test_silence_is_found_though_it_ticks(self):
    self.begin()
    beats = []
    for tenth in range(1, 31):
      now = tenth / 10
      self.on(given.said(1, messages.Beat()), now)
      beats += self.on(events_lib.Ticked(), now)
    self.assertEqual({*beats}, {events_lib.Send(messages.Beat())})
    self.assertBetween(len(beats), 8, 10)
    actions = self.on(events_lib.Ticked(), 3.1)
    (text,) = (a.text for a in actions if isinstance(a, events_lib.Log))
    reason = "its agent was silent for 3.0 s"
    self.assertEqual(text, f"Suspects n2: {reason}")
    suspect = messages.Suspect("life 2", reason, is_certain=False)
    told = events_lib.Send(messages.Suspects(1, (suspect,)))
    self.assertIn(told, actions)

  def test_who_was_away_blames_nobody(self):
    self.begin()
    self.on(events_lib.Ticked(), 0.1)
    self.assertEqual(self.on(events_lib.Ticked(), 9.0), [events_lib.Send(messages.Beat())])

  def test_a_doubt_is_settled_by_the_log(self):
    self.begin()
    asked = self.asked(self.on(events_lib.WorkerSaid(messages.Doubt())))
    self.assertEqual(asked, [given.made_after(1)])
    self.asked(self.answer(error=OSError("no folder.")))
    self.assertEqual(self.asked(self.answer(2.0)), [given.made_after(1)])
    self.assertEqual(self.answer([]), [events_lib.TellWorker(messages.StillMember())])
    self.asked(self.on(events_lib.WorkerSaid(messages.Doubt())))
    actions = self.answer([members.view(2, 1, 2)])
    self.assertNotIn(events_lib.TellWorker(messages.StillMember()), actions)
    self.assertIsInstance(actions[-1], events_lib.End)

  def test_who_became_a_member_when_all_others_were_done(self):
    self.begin()
    self.assertEqual(self.asked(self.tick(1.1)), [])
    self.on(given.said(1, messages.Done()))
    self.on(given.said(2, messages.Done()))
    asked = self.asked(self.on(events_lib.Ticked(), 1.2))
    self.assertEqual(asked, [events_lib.Sleep(10.0)])
    self.assertEqual(self.answer(11.2), [events_lib.End()])

  def test_the_status_is_written_once_a_second(self):
    self.begin()
    report = lambda steps: self.on(events_lib.WorkerSaid(messages.Report({"steps": steps})))
    first = self.asked(report(1))
    write = lambda steps: events_lib.CallJudge("mark", ("status/0", {"steps": steps}))
    self.assertEqual(first, [write(1)])
    self.assertEqual([*report(2), *report(3)], [])
    self.assertEqual(self.asked(self.answer()), [events_lib.Sleep(1.0)])
    second = self.asked(self.answer())
    self.assertEqual(second, [write(3)])

  def test_an_agent_that_does_not_fit_ends(self):
    options = given.make_options("n7")
    self.state = state_lib.AgentState(options, incarnation="life 7")
    self.asked(self.on(events_lib.Began()))
    error = ValueError("config.seed is 0 there and 1 here")
    self.assertEqual(self.answer(error=error), [events_lib.End(error=error)])
