"""Several cores come to the same views, whatever happens to them."""

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import events as events_lib
from tests.cluster.agent import simulation


class SimulationTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.world = simulation.World()
    for name in "abcd":
      self.world.add(name)
    self.world.run(3.0)
    self.nodes = self.world.nodes

  def check(self, number, members):
    """Checks who lives, and that all are in the same view."""
    self.assertEqual(
        self.world.views, {name: (number, members) for name in members}
    )

  def test_all_begin_together(self):
    self.check(1, "abcd")
    for name, node in self.nodes.items():
      with self.subTest(name):
        told = [m for m in node.told if isinstance(m, messages.Gathered)]
        begun = dict(enumerate("abcd"))
        self.assertEqual(told, [messages.Gathered(1, "begun", begun)])
        self.assertIn(messages.Assignment({}), node.told)

  @parameterized.parameters(
      ("c", "abd"),
      ("a", "bcd"),  # The leader.
      ("bc", "ad"),
      ("ab", "cd"),
      ("abc", "d"),
  )
  def test_machines_that_are_gone(self, dead, left):
    for name in dead:
      self.nodes[name].kill()
    self.world.run(0.1 if len(dead) <= 2 else 1.5)
    self.check(2, left)
    self.world.run(60.0)
    self.check(2, left)

  def test_the_second_dies_while_the_view_is_written(self):
    self.nodes["b"].kill()
    self.world.run(0.002)
    self.nodes["a"].kill()
    self.world.run(1.5)
    self.assertEqual({m for _, m in self.world.views.values()}, {"cd"})
    self.assertLen(set(self.world.views.values()), 1)

  @parameterized.parameters(("c", "abd"), ("a", "bcd"))
  def test_a_machine_that_says_nothing_any_more(self, dead, left):
    self.nodes[dead].vanish()
    self.world.run(2.9)
    self.assertEqual({v for v, _ in self.world.views.values()}, {1})
    self.world.run(0.3)
    self.check(2, left)
    reason = self.nodes["d"].state.roster.view.reason
    self.assertEqual(reason, f"{dead} left: its agent was silent for 3.0 s")

  def test_a_machine_that_is_cut_off_from_all_others(self):
    self.nodes["a"].is_cut_off = True
    self.world.run(10.0)
    self.check(2, "bcd")
    self.assertIn("go on without it", self.nodes["a"].ended.reason)

  def test_a_newcomer(self):
    self.world.add("e")
    self.world.run(3.0)
    self.check(2, "abcde")
    told = self.nodes["e"].told
    self.assertIn(messages.Assignment({"view": 1}), told)
    self.assertNotIn(messages.Assignment({}), told)
    self.nodes["a"].kill()
    self.world.run(0.1)
    self.check(3, "bcde")

  def test_a_newcomer_that_dies_before_it_joins(self):
    self.world.add("e")
    self.world.run(0.5)
    self.nodes["e"].kill()
    self.world.run(3.0)
    self.check(1, "abcd")

  @parameterized.parameters((-9, "SIGKILL"), (1, "exit status 1"))
  def test_a_worker_ends_while_its_agent_lives(self, code, reason):
    self.nodes["b"].kill_worker(code)
    self.world.run(0.1)
    self.check(2, "acd")
    self.assertEqual(
        self.nodes["b"].ended.reason, f"its worker ended with {reason}"
    )
    self.assertIsNone(self.nodes["b"].state.successor)
    killed = {"life 1"} if code < 0 else set()
    self.assertEqual(self.nodes["a"].state.ending.workerless, killed)

  def test_a_notice(self):
    self.nodes["b"].tell(events_lib.Noticed("SIGTERM"))
    self.world.run(0.1)
    self.check(2, "abcd")
    view = self.nodes["d"].state.roster.view
    self.assertEqual(view.leaving, (1,))
    self.nodes["b"].say(messages.Leave())  # It has handed over.
    self.world.run(0.1)
    self.check(3, "acd")
    self.assertEqual(self.nodes["b"].ended, events_lib.End())

  def test_a_notice_before_it_has_joined(self):
    self.world.add("e")
    self.world.run(0.5)
    self.nodes["e"].tell(events_lib.Noticed("SIGTERM"))
    self.world.run(1.0)
    self.assertIn("has not joined yet", self.nodes["e"].ended.reason)
    self.check(1, "abcd")

  def test_all_workers_are_killed_and_all_begin_anew(self):
    for node in self.nodes.values():
      node.kill_worker()
    self.world.run(10.0)
    self.check(3, "abcd")
    for node in self.nodes.values():
      self.assertIn(messages.Assignment({"restart": True}), node.told)

  def test_all_are_done(self):
    for node in self.nodes.values():
      node.say(messages.Done())
      node.kill_worker(0)
    self.world.run(1.0)
    for node in self.nodes.values():
      self.assertEqual(node.ended, events_lib.End())
      self.assertEqual(node.state.roster.view.number, 1)

  @parameterized.parameters(*range(6))
  def test_whoever_lives_goes_on_together(self, seed):
    self.world = world = simulation.World(seed)
    for name in "abcdef":
      world.add(name)
    world.run(3.0)
    for name in world.random.sample("abcdef", world.random.randint(1, 5)):
      node = world.nodes[name]
      happens = world.random.choice([node.kill, node.vanish])
      world.at(world.random.uniform(0.0, 0.05), happens)
    world.run(20.0)
    self.assertLen(set(world.views.values()), 1)
    ((_, members),) = set(world.views.values())
    self.assertEqual(members, "".join(sorted(world.alive)))

  def test_the_same_happens_each_time(self):
    courses = []
    for _ in range(2):
      self.setUp()
      self.nodes["a"].vanish()
      self.world.run(5.0)
      courses.append([node.told for node in self.nodes.values()])
    self.assertEqual(*courses)


if __name__ == "__main__":
  absltest.main()
