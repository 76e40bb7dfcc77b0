"""What one agent does about its worker, and how it joins and leaves."""

import itertools
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import config
from bamboo_jax.cluster import judge, messages, records as records_lib, views
from tests import members
from tests.cluster.agent import given


class OwnWorkerTest(given.AgentCase):

  def test_of_each_key_the_first_post_counts(self):
    self.begin()
    for key, value in (("begun", 1), ("begun", 2), ("other", 3), ("begun", 4)):
      self.hear_worker(messages.Post(1, key, value))
    self.assertEqual([m.value for m, who in self.mesh.sent if who == "life 1"], [1, 3])
    for key, number in itertools.product(("begun", "other"), (1, 2)):
      self.hear(number, messages.Post(1, key, 0))
    # Posts before the last that all have heard are forgotten.
    self.assertEqual([post.key for post in self.agent._board.own(1)], ["other"])

  def test_an_error_of_a_callback_ends_the_agent(self):
    self.begin(me=1)
    self.tell(self.agent._or_end(self.agent._hear), "life 0", messages.Say(suspects=None))
    self.assertIsInstance(self.ended, TypeError)

  def test_a_step_starts_again_while_its_end_is_noted(self):
    """As of an agent that was suspended: answer and next question come at once."""
    self.begin(me=1)
    started = []

    async def step():
      started.append(self.now)

    def start_twice():
      self.agent._start_once(step)
      self.loop.call_soon(self.agent._start_once, step)

    self.tell(start_twice)
    self.assertLen(started, 2)

  @parameterized.parameters((0, 61), (59, 120))
  def test_a_worker_that_imports_is_killed_once_it_rests(self, until, killed):
    self.begin()
    while not self.worker.is_killed:
      self.worker.busy = self.now < until
      self.run_for(1.0)
    self.assertBetween(self.now, killed - 1, killed + 1)

  @parameterized.parameters(("answers", 15), ("fails", 75), ("hangs", 75))
  def test_a_worker_that_waits_for_the_folder(self, it, killed_secs):
    """It makes no progress from second 1 on, for 13 s; it is then killed."""
    self.begin(numbers=(0, 1), limits=config.ClusterSection(no_progress_secs=13.0))
    self.play("worker ready")
    self.tell(self.agent._start, self.agent._follow)
    self.run_for(0.9)
    if it == "fails":
      self.place.errors = [OSError("Input/output error")] * 999
    if it == "hangs":
      never = self.loop.create_future()
      self.agent._judge = lambda *_: never
    self.hear_worker(messages.Beat(1, False))
    while not self.worker.is_killed:
      self.hear_worker(messages.Beat(1, False))
      self.run_for(0.5, beats=(1,))
    self.assertBetween(self.now, killed_secs - 1.5, killed_secs + 1.5)

  def test_a_doubt_is_settled_by_the_log(self):
    self.begin()
    self.play("away 1")
    self.hear_worker(messages.Beat(doubts=1))
    self.run_for(0.05)
    self.assertEqual(self.worker.sent, [])
    self.run_for(0.1)
    self.assertEqual(self.worker.sent, [messages.NewView(self.view, doubts=1)])
    self.worker.sent.clear()
    self.play("log 2 n1 n2")
    self.hear_worker(messages.Beat(doubts=2))
    self.play("pass 0.1 | ends the others continue without it: test")
    self.assertEqual(self.worker.sent, [])

  def test_a_worker_is_told_the_view_that_came_before_its_start(self):
    self.begin(me=3)
    self.agent.has_worker, self.agent.roster.origin = False, None
    later = messages.NewView(members.view(2, 0, 1, 2, 4))
    self.hear(1, later)
    self.assertEqual(self.worker.sent, [])
    self.tell(self.agent._start, self.agent._worker)
    self.assertEqual(self.worker.sent, [later])
    self.tell(self.worker.exit.set_result, 1)
    self.play("pass 0.1 | ends its worker ended with exit status 1")
    self.mesh.sent.clear()
    self.play("worker notice it is slow")
    self.assertEqual(self.mesh.sent, [])

  def test_the_status_is_written_once_a_second(self):
    self.begin()
    for steps in (1, 2, 3):
      self.hear_worker(messages.Say(report={"steps": steps}))
      self.run_for(0.1)
    self.assertEqual(self.records.find("status/0")["steps"], 1)
    self.run_for(1.0)
    self.assertEqual(self.records.find("status/0")["steps"], 3)


class JoinTest(given.AgentCase):
  """Which run a node joins, and which number it has."""

  def find_run(self, **changes):
    self.make(**changes)
    return self.do(self.agent._find_run())

  def check_refused(self, why, call, *args):
    """Fails unless a node is refused if something happens to the records while it waits."""
    self.make(me=7, config={"seed": 1})
    self.loop.call_later(2.0, call, *args)
    with self.assertRaisesRegex(ValueError, why):
      self.do(self.agent._find_run())

  def check_run(self, run, stamp):
    self.assertEqual((self.agent.run_id, self.agent.stamp), (run, stamp))

  def test_the_first_node_of_a_run_says_what_all_agree_on(self):
    self.assertEqual(self.find_run(me=1), views.EMPTY)
    self.find_run(me=0)
    self.check_run(0, "life 1")
    begun = views.begin_run(members.view(1, 0), "n1 begins")
    for view in (members.view(1, 0), begun, members.view(3, 4, 5, run=2)):
      self.make_view(view)
    self.assertEqual(self.find_run(me=5).number, 3)
    self.check_run(2, "life 5")

  @parameterized.parameters(True, False)
  def test_a_run_of_another_config_of_which_nobody_is_left(self, has_begun):
    self.find_run()
    if has_begun:
      self.make_view(members.view(1, 0, 1))
    self.records.mark("nodes/life 0", {"awake_secs": 1.0})
    view = self.find_run(me=7, config={"seed": 1})
    self.assertBetween(self.now, 10.0, 10.1)
    self.assertEqual(view, judge.newest_view(self.records))
    self.assertEqual((view.members, view.run), ((), view.number))
    self.assertEqual(view.number, 3 if has_begun else 1)
    self.check_run(view.number, "life 7")

  @parameterized.parameters(True, False)
  def test_another_node_begins_the_run_that_both_fit(self, has_begun):
    self.find_run()
    view = self.make_view(members.view(1, 0, 1)) if has_begun else views.EMPTY
    asked = views.ask(view, "n7") if has_begun else view
    begun = views.begin_run(asked, "n8 begins another run")
    self.make(me=7, name="n7", config={"seed": 1})
    self.loop.call_later(2.0, self.make_view, begun)
    self.loop.call_later(
        2.0, self.records.make, f"run/{begun.run}", {"id": "x", "config": {"seed": 1}}
    )
    self.assertEqual(self.do(self.agent._find_run()), begun)
    self.check_run(begun.run, "x")

  def test_agents_that_start_keep_their_folder(self):
    """They have no view yet, but mark themselves again and again."""
    self.find_run()
    mark = lambda secs: self.records.mark("nodes/life 0", {"awake_secs": secs})
    mark(1.0)
    self.check_refused("seed is 0 there and 1 here", mark, 3.0)
    self.assertEqual(judge.newest_view(self.records), views.EMPTY)

  def test_a_run_that_is_complete(self):
    self.find_run()
    judge.note_done(self.records, members.view(1, 0))
    self.make(me=7)
    self.do(self.join())
    self.assertEqual(self.ended, "")
    self.assertEqual(self.records.marks("nodes"), {})
    self.assertEqual(self.logged, ["All steps of the run in workdir are done."])

  def test_a_process_that_trains_alone(self):
    self.make()
    me = views.Member(0, judge.ALONE, "", "life", "h", 1)
    alone = self.make_view(views.View(1, (me,), "test", run=1))
    answer = views.answer(views.ask(alone, "n0"), judge.ALONE)
    self.check_refused("in this workdir, of bamboo train; end it", self.make_view, answer)
    view = self.find_run()  # It is killed.
    self.assertEqual((view.number, view.run), (5, 5))
    self.assertIsNone(self.records.find("run/1"))

  @parameterized.parameters((False, 15.0), (True, 300.0))
  def test_a_judge_that_is_away_is_waited_for(self, is_again, secs):
    self.make(is_again=is_again)
    self.place.errors = [OSError("away.")] * 10_000
    with self.assertRaisesRegex(OSError, "away."):
      self.do(self.agent._find_run())
    self.assertBetween(self.now, secs, secs + 0.3)

  def take(self, name, *, begun=views.EMPTY, **changes):
    told = dict(place=lambda zones: {t: i for i, t in enumerate(zones)}, num_nodes=3)
    self.make(name=name, me=name[1:], **told | changes)
    return self.do(self.agent._take_number(begun))

  def test_a_lost_answer_takes_no_second_number(self):
    late = members.view(1, 0)
    self.assertEqual(self.take("n0", begun=late), 0)
    create = self.place.create

    def lose(key, content):
      create(key, content)
      self.place.create = create
      raise OSError("no answer.")

    self.place.create = lose
    self.assertEqual(self.take("n1", begun=late), 1)
    self.assertLen(self.records.follow("tickets/0", -1), 2)

  def ticket(self, number, name, zone):
    own = {"zone": zone, "incarnation": f"life of {name}", "name": name}
    self.records.make(f"tickets/0/{number}", own)

  def test_the_first_nodes_are_placed_by_zone_in_the_order_of_names(self):
    self.make()
    self.ticket(0, "n10", "b")
    self.ticket(1, "n2", "c")
    seen = []

    def place(zones):
      seen.append(zones)
      return {ticket: 100 + ticket for ticket in zones}

    self.assertEqual(self.take("n1", place=place), 102)
    self.assertEqual([*seen[0].items()], [(2, "a"), (1, "c"), (0, "b")])
    self.assertTrue(self.records.find("placed/0"))
    self.assertFalse(self.agent.roster.is_short)
    self.assertEqual(self.take("n11", place=None), 3)  # It comes later.

  def test_a_first_node_that_does_not_come(self):
    self.make()
    self.ticket(0, "n2", "a")
    self.assertEqual(self.take("n0", place=None), 1)
    self.assertBetween(self.now, 300.0, 301.0)
    self.assertFalse(self.records.find("placed/0"))
    self.assertTrue(self.agent.roster.is_short)
    self.assertEqual(self.take("n5", place=None), 2)  # It comes when others have decided.

  def test_a_run_that_can_have_no_more_nodes(self):
    self.make()
    self.enter_context(mock.patch.object(records_lib.Records, "newest", lambda *_: 8190))
    with self.assertRaisesRegex(ValueError, "workdir has had 8191 nodes, dead ones included, and"):
      self.do(self.agent._take_number(views.EMPTY))

  def test_it_is_ready_once_it_knows_whom_it_reaches_and_hears_these(self):
    self.begin(me=3)
    self.mesh.silent.add(1)
    self.agent.roster.connected.discard("life 1")
    self.play("worker ready | pass 0.3")
    are_ready = lambda: {m.is_ready for m in self.told}
    self.assertNotIn(True, are_ready())
    self.tell(self.mesh.closed[1].set_result, "closed")
    self.run_for(0.3)
    self.assertNotIn(True, are_ready())  # It has not heard the others yet.
    self.play("n0 beats 1 | n2 beats 1 | pass 0.3")
    self.assertIn(True, are_ready())
