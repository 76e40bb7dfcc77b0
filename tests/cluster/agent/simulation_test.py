"""Agents come to the same views, whatever happens to them."""

import dataclasses

from absl.testing import parameterized

from tests.explorer import history, machine as machine_lib, plans


class SimulationTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.begin(4)

  def begin(self, num_nodes, num_steps=0):
    plan = plans.FaultPlan(2, num_nodes, num_steps, ())
    self.history = history.ClusterHistory(plan)
    self.nodes = self.history.machines
    self.run_for(3.0)

  def run_for(self, secs):
    clock = self.history.world.clock
    clock.run(clock.now + secs)
    self.assertEqual(self.history.violations, [])

  def check(self, number, members):
    """Checks who lives, and that all are in the same view."""
    views = {
        host: (view.number, " ".join(sorted(m.name for m in view.members)))
        for host, node in self.nodes.items()
        for view in [node.agent.roster.view]
        if node.is_alive
    }
    self.assertEqual(views, {h: (number, members) for h in members.split()})

  @parameterized.parameters(
      ("n2", "n0 n1 n3"),
      ("n0", "n1 n2 n3"),
      ("n1 n2", "n0 n3"),
      ("n0 n1", "n2 n3"),
      ("n0 n1 n2", "n3"),
  )
  def test_machines_that_are_gone(self, dead, left):
    self.check(1, "n0 n1 n2 n3")
    for host in dead.split():
      self.nodes[host].kill()
    # One that is left alone asks first: a firewall may refuse for the others.
    is_alone = " " not in left
    self.run_for(6.0 if is_alone else 0.1 if len(dead) <= 5 else 1.5)
    newest = self.nodes[left.split()[0]].agent.roster.view.number
    self.assertBetween(newest, 2, 1 + len(dead.split()))
    self.check(newest, left)
    self.run_for(30.0)
    self.check(newest, left)

  def test_the_second_dies_while_the_view_is_written(self):
    self.nodes["n1"].kill()
    self.run_for(0.006)
    self.nodes["n0"].kill()
    self.run_for(3.0)
    numbers = {n.agent.roster.view.number for n in self.nodes.values()}
    self.check(max(numbers), "n2 n3")

  @parameterized.parameters(("n2", "n0 n1 n3"), ("n0", "n1 n2 n3"))
  def test_a_machine_that_says_nothing_any_more(self, dead, left):
    self.nodes[dead].vanish()
    self.run_for(2.7)
    self.assertEqual(self.nodes["n3"].agent.roster.view.number, 1)
    self.run_for(2.0)
    self.check(2, left)
    reason = "its agent was silent for 3.0 s"
    self.assertEqual(self.nodes["n3"].agent.roster.view.reason, f"{dead} left: {reason}")

  def test_a_machine_that_hangs(self):
    self.nodes["n2"].hang()
    self.run_for(2.7)
    self.assertEqual(self.nodes["n3"].agent.roster.view.number, 1)
    self.run_for(2.0)
    reason = self.nodes["n3"].agent.roster.view.reason
    self.assertEqual(reason, "n2 left: its agent was silent for 3.0 s")

  def test_a_worker_ends_while_its_agent_lives(self):
    self.nodes["n1"].kill_worker(1)
    self.run_for(0.1)
    self.check(2, "n0 n2 n3")
    reason = "its worker ended with exit status 1"
    self.assertEqual(self.nodes["n1"].ended.reason, reason)

  def test_a_worker_is_killed(self):
    self.nodes["n1"].kill_worker()
    self.run_for(0.1)
    self.assertEqual(self.nodes["n0"].agent.roster.view.number, 2)
    self.assertTrue(self.nodes["n1"].is_alive)  # Until others go on for sure.
    self.run_for(3.0)
    self.check(2, "n0 n2 n3")

  def test_all_workers_are_killed_and_all_begin_anew(self):
    for node in self.nodes.values():
      node.kill_worker()
    self.run_for(12.0)
    number = self.nodes["n0"].agent.roster.view.number
    self.check(number, "n0 n1 n2 n3")
    self.assertGreater(self.nodes["n0"].worker.epoch, 0)
    self.assertGreater(self.nodes["n0"].worker.steps, 4)

  def test_a_notice(self):
    self.nodes["n1"].give_notice()
    self.run_for(0.1)
    self.check(2, "n0 n1 n2 n3")
    number = self.nodes["n1"].agent.roster.me.number
    self.assertEqual(self.nodes["n3"].agent.roster.view.leaving, (number,))

  def test_a_notice_before_it_has_joined(self):
    self.history.add("n4")
    self.run_for(0.5)
    self.nodes["n4"].give_notice()
    self.run_for(1.0)
    self.assertIn("has not joined yet", self.nodes["n4"].ended.reason)
    self.check(1, "n0 n1 n2 n3")

  def test_all_are_done(self):
    self.begin(4, num_steps=5)
    self.run_for(5.0)
    for node in self.nodes.values():
      self.assertEqual(node.ended, machine_lib.Ended("", None))
      self.assertEqual(node.agent.roster.view.number, 1)

  @parameterized.parameters((False, "is alive; give each node"), (True, None))
  def test_a_name_twice(self, is_dead, problem):
    options = history.make_options("n1", self.history.plan)
    options = dataclasses.replace(options, host="n9")
    twin = machine_lib.SimulatedMachine(self.history.world, options)
    self.nodes["n9"] = twin
    if is_dead:
      self.nodes["n1"].vanish()
    self.run_for(20.0)
    if problem:
      self.assertIn(problem, f"{twin.ended.error}")
      self.check(1, "n0 n1 n2 n3")
    else:
      members = self.nodes["n0"].agent.roster.view.members
      hosts = [m.host for m in members]
      self.assertCountEqual(hosts, ["n0", "n2", "n3", "n9"])

  def test_a_run_begins_with_those_who_are_there(self):
    plan = plans.FaultPlan(1, 4, 0, ())
    self.history = history.ClusterHistory(plan)
    self.nodes = self.history.machines
    self.history.world.clock.run(0.5)
    self.nodes["n2"].kill()
    self.run_for(15.0)
    self.check(1, "n0 n1 n3")
    self.assertGreater(self.nodes["n0"].worker.steps, 4)
