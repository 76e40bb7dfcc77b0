"""To which view members come, how fast, and why, after one fault."""

from absl.testing import parameterized

from tests.explorer import history, plans


class ScenariosTest(parameterized.TestCase):

  def begin(self, num_steps=0, secs=3.0):
    self.history = history.ClusterHistory(plans.FaultPlan(2, 4, num_steps, ()))
    self.nodes = self.history.machines
    self.run_for(secs)

  def run_for(self, secs):
    self.history.clock.run_for(secs)
    self.assertEqual(self.history.find_violations(), [])

  def view(self, host="n3"):
    return self.nodes[host].agent.roster.view

  def check(self, number, members):
    """Checks who lives, and that all are in the same view."""
    views = {
        host: (self.view(host).number, " ".join(sorted(m.name for m in self.view(host).members)))
        for host, node in self.nodes.items()
        if node.is_alive
    }
    self.assertEqual(views, {h: (number, members) for h in members.split()})

  @parameterized.parameters(
      ("n2", "n0 n1 n3", 0.1),
      ("n0", "n1 n2 n3", 0.1),
      ("n1 n2", "n0 n3", 0.1),
      ("n0 n1", "n2 n3", 0.1),
      ("n0 n1 n2", "n3", 6.0),  # It asks first: a firewall may refuse for the others.
  )
  def test_machines_that_are_gone(self, dead, left, secs):
    self.begin()
    self.check(1, "n0 n1 n2 n3")
    for host in dead.split():
      self.nodes[host].kill()
    self.run_for(secs)
    newest = self.view(left.split()[0]).number
    self.assertBetween(newest, 2, 1 + len(dead.split()))
    self.check(newest, left)
    self.run_for(30.0)
    self.check(newest, left)

  def test_the_second_dies_while_the_view_is_written(self):
    self.begin()
    self.nodes["n1"].kill()
    self.run_for(0.006)
    self.nodes["n0"].kill()
    self.run_for(3.0)
    self.check(self.view().number, "n2 n3")

  @parameterized.parameters("n2 vanish", "n0 vanish", "n2 hang")
  def test_a_machine_that_says_nothing_any_more(self, fault):
    self.begin()
    host, what = fault.split()
    getattr(self.nodes[host], what)()
    self.run_for(2.7)
    self.assertEqual(self.view().number, 1)
    self.run_for(2.0)
    self.assertEqual(self.view().number, 2)
    self.assertEqual(self.view().reason, f"{host} left: its agent was silent for 3.0 s")

  @parameterized.parameters((1, "its worker ended with exit status 1"), (-9, None))
  def test_a_worker_that_ends(self, code, reason):
    self.begin()
    self.nodes["n1"].kill_worker(code)
    self.run_for(0.1)
    self.assertEqual(self.view().number, 2)
    # One that is killed lives until others go on for sure.
    self.assertEqual(self.nodes["n1"].ended and self.nodes["n1"].ended.reason, reason)
    self.run_for(3.0)
    self.check(2, "n0 n2 n3")

  def test_all_workers_are_killed_and_all_begin_anew(self):
    self.begin()
    for node in self.nodes.values():
      node.kill_worker()
    self.run_for(12.0)
    self.check(self.view().number, "n0 n1 n2 n3")
    worker = self.nodes["n0"].worker
    self.assertGreater(worker.epoch, 0)
    self.assertGreater(worker.steps, 4)

  def test_a_notice(self):
    self.begin()
    self.nodes["n1"].notice()
    self.history.come("n4")
    self.run_for(0.5)
    self.nodes["n4"].notice()
    self.run_for(1.0)
    self.assertIn("has not joined yet", self.nodes["n4"].ended.reason)
    self.check(2, "n0 n1 n2 n3")
    self.assertEqual(self.view().leaving, (self.nodes["n1"].agent.roster.me.number,))

  def test_all_are_done(self):
    self.begin(num_steps=5, secs=8.0)
    for node in self.nodes.values():
      self.assertEqual((node.ended.reason, node.ended.error), ("", None))
      self.assertEqual(node.agent.roster.view.number, 1)

  @parameterized.parameters((False, "is alive; give each node"), (True, None))
  def test_a_name_twice(self, is_dead, problem):
    self.begin()
    self.history.come("n9", name="n1")
    if is_dead:
      self.nodes["n1"].vanish()
    self.run_for(20.0)
    if problem:
      self.assertIn(problem, f"{self.nodes['n9'].ended.error}")
      self.check(1, "n0 n1 n2 n3")
    else:
      self.assertEqual({m.host for m in self.view().members}, {"n0", "n2", "n3", "n9"})

  def test_a_run_begins_with_those_who_are_there(self):
    self.begin(secs=0.5)
    self.nodes["n2"].kill()
    self.run_for(15.0)
    self.check(1, "n0 n1 n3")
    self.assertGreater(self.nodes["n0"].worker.steps, 4)
