"""The arrival of a node: which run it joins, and which number it has."""

from absl.testing import parameterized

from bamboo_jax.cluster import judge, records as records_lib, views
from bamboo_jax.cluster.agent import arrival, events as events_lib, state as state_lib
from tests import folders, members
from tests.cluster.agent import given


class ArrivalTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.records = records_lib.Records(self.folder, b"key")
    self.on_sleep, self.now = (lambda: None), 0.0

  def start(self, name="n0", **changes):
    options = given.make_options(name, workdir="there", **changes)
    self.state = state_lib.AgentState(options, incarnation=f"life of {name}")
    return self.state

  def do(self, flow, *, fails=0):
    """Returns the result of a flow; each call fails so many times after it took effect."""
    answer = error = None
    failed = {}
    while True:
      try:
        request = flow.throw(error) if error else flow.send(answer)
      except StopIteration as end:
        return end.value
      answer = error = None
      if isinstance(request, events_lib.Sleep):
        self.now += request.secs
        self.state.now = answer = self.now
        self.on_sleep()
        continue
      answer = getattr(self.records, request.method)(*request.args)
      key = repr(request)
      failed[key] = failed.get(key, 0) + 1
      if failed[key] <= fails:
        answer, error = None, OSError("no answer.")

  def make(self, key, value):
    return self.records.make(key, given.plain(value))

  def find_run(self, **changes):
    return self.do(arrival._find_run(self.start(**changes)))

  def newest(self):
    return judge.run(judge.newest_view(), self.records)

  # The run.

  def test_the_first_node_says_what_all_agree_on(self):
    self.assertEqual(self.find_run(name="n1"), views.EMPTY)
    self.assertEqual((self.state.run, self.state.stamp), (0, "life of n1"))
    self.find_run(name="n0")
    self.assertEqual((self.state.run, self.state.stamp), (0, "life of n1"))

  def test_a_run_that_began_later(self):
    self.find_run()
    begun = views.begin_run(members.view(1, 0), "n1 begins")
    for view in (members.view(1, 0), begun, members.view(3, 4, 5, run=2)):
      self.make(f"views/{view.number}", view)
    self.assertEqual(self.find_run(name="n5").number, 3)
    self.assertEqual((self.state.run, self.state.stamp), (2, "life of n5"))

  def test_a_run_of_another_config_with_members_that_live(self):
    self.find_run()
    view = members.view(1, 0, 1)
    self.make("views/1", view)
    question = views.ask(view, "n7")
    self.on_sleep = lambda: self.make("views/3", views.answer(question, "n1"))
    with self.assertRaisesRegex(
        ValueError, "This node does not fit the run in there: seed is 0 there and 1 here."
    ):
      self.find_run(name="n7", config={"seed": 1})
    self.assertEqual(self.newest().text, "n1 is alive")

  @parameterized.parameters(True, False)
  def test_a_run_of_another_config_of_which_nobody_is_left(self, has_begun):
    self.find_run()
    if has_begun:
      self.make("views/1", members.view(1, 0, 1))
    self.records.mark("nodes/life 0", {"awake_secs": 1.0})
    view = self.find_run(name="n7", config={"seed": 1})
    self.assertEqual(self.now, 10.0)
    self.assertEqual(view, self.newest())
    self.assertEqual((view.members, view.run), ((), view.number))
    self.assertEqual(view.number, 3 if has_begun else 1)
    self.assertEqual((self.state.run, self.state.stamp), (view.number, "life of n7"))

  def test_agents_that_start_keep_their_folder(self):
    """They have no view yet, but mark themselves again and again."""
    self.find_run()
    mark = lambda secs: self.records.mark("nodes/life 0", {"awake_secs": secs})
    mark(1.0)
    self.on_sleep = lambda: mark(3.0)
    with self.assertRaisesRegex(ValueError, "seed is 0 there and 1 here"):
      self.find_run(name="n7", config={"seed": 1})
    self.assertEqual(self.newest(), views.EMPTY)

  def test_a_run_that_is_complete(self):
    self.find_run()
    judge.note_done(members.view(1, 0), self.records)
    state = self.start("n7")
    self.do(arrival.join(state))
    self.assertTrue(state.is_ending)
    self.assertEqual(self.records.marks("nodes"), {})
    self.assertIn("All steps of the run in there are done.", str(state.actions))

  def test_a_process_that_trains_alone(self):
    alone = members.view(1, 0)
    alone = views.View(1, (views.Member(0, judge.ALONE, "", "life", "h", 1),), "test", run=1)
    self.make("views/1", alone)
    question = views.ask(alone, "n0")
    self.on_sleep = lambda: self.make("views/3", views.answer(question, judge.ALONE))
    with self.assertRaisesRegex(ValueError, "bamboo train is running in there; end it, or"):
      self.find_run()
    self.on_sleep = lambda: None  # It is killed.
    view = self.find_run()
    self.assertEqual((view.number, view.run), (5, 5))
    self.assertIsNone(self.records.find("run/1"))

  # The number.

  def take(self, name, *, begun=views.EMPTY, fails=0, **changes):
    given_ = dict(zone="a", place=lambda zones: {t: i for i, t in enumerate(zones)}, num_nodes=3)
    return self.do(arrival.take_number(self.start(name, **given_ | changes), begun), fails=fails)

  def test_a_lost_answer_takes_no_second_number(self):
    late = members.view(1, 0)
    self.assertEqual(self.take("n0", begun=late, fails=1), 0)
    self.assertEqual(self.take("n1", begun=late, fails=2), 1)
    self.assertEqual(len(self.records.follow("tickets/0", -1)), 2)

  def test_numbers_count_from_0_in_each_run(self):
    self.assertEqual(self.take("n0", begun=members.view(1, 0)), 0)
    state = self.start("n1")
    state.run = 2
    self.assertEqual(self.do(arrival.take_number(state, members.view(3, 0, run=2))), 0)

  def test_the_first_nodes_are_placed_by_zone_in_the_order_of_names(self):
    for name, zone in (("n10", "b"), ("n2", "c")):
      self.make(f"tickets/0/{len(self.records.follow('tickets/0', -1))}", self.ticket(name, zone))
    seen = []

    def place(zones):
      seen.append(zones)
      return {ticket: 100 + ticket for ticket in zones}

    self.assertEqual(self.take("n1", place=place), 102)
    self.assertEqual([*seen[0].items()], [(2, "a"), (1, "c"), (0, "b")])
    self.assertTrue(self.records.find("placed/0"))
    self.assertFalse(self.state.is_short)
    self.assertEqual(self.take("n11", place=None), 3)  # It comes later.

  def ticket(self, name, zone):
    return {"zone": zone, "incarnation": f"life of {name}", "name": name}

  def test_a_first_node_that_does_not_come(self):
    self.make("tickets/0/0", self.ticket("n2", "a"))
    self.assertEqual(self.take("n0", place=None), 1)
    self.assertBetween(self.now, 300.0, 301.0)
    self.assertFalse(self.records.find("placed/0"))
    self.assertTrue(self.state.is_short)
    self.make("tickets/0/2", self.ticket("n5", "a"))  # It comes when others have decided.
    state = self.start("n5", num_nodes=3, place=None)
    self.assertEqual(self.do(self.again(state)), 2)

  def again(self, state):
    """Takes the number that this node has."""
    newest = self.records.newest
    self.records.newest = lambda name, after: newest(name, after) - 1
    return arrival.take_number(state, views.EMPTY)

  def test_a_run_that_can_have_no_more_nodes(self):
    self.records.newest = lambda name, after: 8190
    with self.assertRaisesRegex(ValueError, "there has had 8191 nodes, dead ones included, and"):
      self.take("n0")
