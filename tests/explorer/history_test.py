"""Histories are the same each time, and what goes wrong in them is found."""

import dataclasses
import os
import random
import subprocess
import sys

from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import views
from tests.explorer import history, plans

_COURSES = """
from tests.explorer import history
from tests.explorer import plans

for mode in sorted(plans.MODES):
  plan = plans.draw(mode, 3)
  assert plan == plans.draw(mode, 3)
  one = history.ClusterHistory(plan)
  one.world.clock.run(8.0)
  print(mode, one.world.clock.count, one.world.trace)
"""


class HistoryTest(parameterized.TestCase):

  def test_each_word_has_faults(self):
    for word in (*plans._DRAWS, *plans.KINDS):
      faults = plans._draw_faults(random.Random(0), word, 5.0, ["n0", "n1", "n2", "n3"])
      self.assertNotEmpty(list(faults), word)

  def test_the_same_happens_each_time(self):
    processes = []
    for seed in "12":  # Of the hashes of strings, which order sets.
      process = subprocess.Popen(
          [sys.executable, "-c", _COURSES],
          env={**os.environ, "PYTHONHASHSEED": seed},
          stdout=subprocess.PIPE,
          text=True,
      )
      processes.append(process)
    one, other = (p.communicate()[0].splitlines() for p in processes)
    self.assertLen(one, len(plans.MODES))
    self.assertEqual(one, other)

  def test_what_should_not_be_is_found(self):
    plan = plans.FaultPlan(0, num_nodes=4, num_steps=0, faults=())
    one = history.ClusterHistory(plan)
    one.world.clock.run(4.0)
    one.machines["n1"].kill_worker()  # Which no fault of the plan explains.
    (found,) = one.run()
    self.assertIn("accuracy: n1 ended: its worker was killed by SIGKILL", found)

  def test_healthy_members_that_end_are_found(self):
    """Though no worker is left by then to ask for its state."""
    one = history.ClusterHistory(plans.FaultPlan(0, num_nodes=4, num_steps=0, faults=()))
    one.world.clock.run(4.0)
    known = one.machines["n0"].agent.roster.view
    one.judge.make(f"views/{known.number + 1}", json_lib.to_plain(views.over(known)))
    found = one.run()
    ends = {v.split(" ends: ")[0].split("copies: ")[1] for v in found if " ends: " in v}
    self.assertEqual(ends, {"n0", "n1", "n2", "n3"}, msg=found)

  def test_a_record_that_changes_is_found(self):
    one = history.ClusterHistory(plans.FaultPlan(0, num_nodes=4, num_steps=0, faults=()))
    one.world.clock.run(4.0)
    del one.judge._values["views/1"]
    one.judge.make("views/1", json_lib.to_plain(views.begin_run(views.EMPTY, "another")))
    self.assertIn("one: view 1 was ", one.run()[0])

  def test_a_place_that_ignores_conditions_is_refused(self):
    one = history.ClusterHistory(plans.FaultPlan(0, num_nodes=3, num_steps=0, faults=()))
    one.judge.ignores_conditions = True
    one.world.clock.run(25.0)
    for machine in one.machines.values():
      self.assertIsNotNone(machine.ended)
      self.assertRegex(str(machine.ended.error), "replaces what is there")

  def test_training_goes_on_while_the_judge_is_away(self):
    stall = plans.SimFault(4.0, "stall", (), 25.0)
    one = history.ClusterHistory(plans.FaultPlan(0, 4, 0, (stall,)))
    one.world.clock.run(6.0)
    steps = one.machines["n0"].worker.steps
    one.world.clock.run(8.0)
    self.assertGreater(one.machines["n0"].worker.steps, steps)

  def test_a_wrong_value_is_found(self):
    one = history.ClusterHistory(plans.FaultPlan(0, 4, 0, ()))
    one.world.clock.run(4.0)
    self.assertEqual(one.violations, [])
    one.machines["n1"].worker._state += "x"
    one.world.clock.run(5.0)
    self.assertRegex(one.violations[0], "state: node . in view 1 commits step")

  def test_a_plan_shrinks_to_what_matters(self):
    faults = [plans.SimFault(float(i), "kill", (f"n{i}",)) for i in range(6)]
    plan = plans.FaultPlan(0, 6, 0, tuple(faults))
    fails = lambda p: {f.at_secs for f in p.faults} >= {1.0, 4.0}
    want = dataclasses.replace(plan, faults=(faults[1], faults[4]))
    self.assertEqual(plans.shrink(plan, fails), want)
