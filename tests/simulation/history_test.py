"""Histories are the same each time, and what goes wrong in them is found."""

import dataclasses

from absl.testing import parameterized

from tests.simulation import history
from tests.simulation import plans


class HistoryTest(parameterized.TestCase):

  @parameterized.parameters(*sorted(plans.MODES))
  def test_the_same_happens_each_time(self, mode):
    plan = plans.draw(mode, 3)
    self.assertEqual(plan, plans.draw(mode, 3))
    courses = []
    for _ in range(2):
      one = history.History(plan)
      one.world.clock.run(8.0)
      courses.append((one.world.clock.count, one.world.trace))
    self.assertEqual(*courses)

  def test_what_should_not_be_is_found(self):
    plan = plans.Plan(0, num_nodes=4, num_steps=0, faults=())
    one = history.History(plan)
    one.world.clock.run(4.0)
    one.machines["n1"].kill_worker()  # Which no fault of the plan explains.
    (found,) = one.run()
    self.assertIn("accuracy: n1 ended: its worker ended with SIGKILL", found)

  def test_a_wrong_value_is_found(self):
    one = history.History(plans.Plan(0, 4, 0, (), trains=True))
    self.addCleanup(one.close)
    one.world.clock.run(2.5)
    self.assertEqual(one.violations, [])
    (node,) = one.machines["n1"].worker.engine.nodes.values()
    key = min(node.sums)
    node.sums[key] = node.sums[key] + "x"
    one.world.clock.run(3.5)
    self.assertRegex(one.violations[0], "state: node . in view 1 commits step")

  def test_a_plan_shrinks_to_what_matters(self):
    faults = [plans.Fault(float(i), "kill", (f"n{i}",)) for i in range(6)]
    plan = plans.Plan(0, 6, 0, tuple(faults))
    fails = lambda p: {f.at_secs for f in p.faults} >= {1.0, 4.0}
    want = dataclasses.replace(plan, faults=(faults[1], faults[4]))
    self.assertEqual(plans.shrink(plan, fails), want)
