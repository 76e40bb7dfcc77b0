"""No history violates anything, each is the same each time, and what goes wrong in one is found."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import views
from tests import samples
from tests.explorer import cluster as cluster_lib, history, plans
from tests.explorer.faults import SimFault

_COURSES = """
from tests.explorer import history, plans

for mode in sorted(plans.MODES):
  plan = plans.draw(mode, 3)
  assert plan == plans.draw(mode, 3)
  one = history.ClusterHistory(plan)
  one.clock.run(8.0)
  said = [(e.secs, e.host, getattr(e, "text", "")) for e in one.trace]
  print(mode, one.clock.count, said)
"""
_DRAWN = [
    (f"{mode}_{seed}", plans.draw(mode, seed))
    for mode in sorted(plans.MODES)
    for seed in samples.draw(range(10), 1, topic=mode)
]
_CORPUS = [
    (path.stem, plans.from_dict(json.loads(path.read_text())))
    for path in sorted((pathlib.Path(__file__).parent / "corpus").glob("*.json"))
]
_LEFT = tuple(SimFault(9.0, "vanish", (f"n{i}",)) for i in range(4))


def ask(seed, *, hang_secs, late_secs, late_at_secs, kind="late"):
  """Returns a plan: n4 comes and hears no member, and the place hangs for all of them."""
  faults = (
      SimFault(6.0, "apart", ("n4",), 70.0),
      SimFault(6.0, "join", ("n4",)),
      SimFault(late_at_secs, kind, ("n4",), late_secs),
      SimFault(9.0, "hang_judge", ("n0", "n1", "n2", "n3"), hang_secs),
  )
  return plans.FaultPlan(seed, 4, 0, faults, no_progress_secs=60.0)


_ASKS = [
    (
        f"ask_{kind}_{hang}_{late}_{at}_{seed}",
        ask(seed, hang_secs=hang, late_secs=late, late_at_secs=at, kind=kind),
    )
    for hang, late, at, kind, seed in samples.draw(
        [
            *itertools.product(
                (0.1, 12.0, 20.0), (0.0, 10.0, 25.0), (6.2, 25.0), ("late", "late_effect"), (0, 1)
            )
        ],
        12,
    )
]


class HistoryTest(parameterized.TestCase):

  def begin(self, *faults, num_nodes=4, secs=0.0, **given):
    one = history.ClusterHistory(plans.FaultPlan(0, num_nodes, 0, faults, **given))
    one.clock.run(secs)
    self.assertEqual(one.find_violations(), [])
    return one

  @parameterized.named_parameters(
      *_DRAWN,
      *samples.draw(_CORPUS, 30, topic="corpus"),
      *_ASKS,
      ("nobody_is_left", plans.FaultPlan(0, 4, 0, (*_LEFT, SimFault(9.5, "join", ("n4",))))),
  )
  def test_nothing_is_violated(self, plan):
    self.assertEqual(history.explore(plan), [], msg=plan)

  def test_the_same_happens_each_time(self):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _COURSES],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in "12"  # Of the hashes of strings, which order sets.
    ]
    one, other = (p.communicate()[0].splitlines() for p in processes)
    self.assertLen(one, len(plans.MODES))
    self.assertEqual(one, other)

  def test_a_newcomer_asks_and_is_answered_and_no_step_waits(self):
    one = history.ClusterHistory(ask(0, hang_secs=0.1, late_secs=0.0, late_at_secs=6.2))
    one.clock.run(70.0)
    said = [e.text for e in one.trace if isinstance(e, cluster_lib.Said)]
    asks = [text for text in said if "n4 asks whether any" in text]
    self.assertNotEmpty([text for text in said if text.endswith(" is alive")])
    # It was answered twice or more, and then waits for longer each time.
    numbers = {text.split("View ")[1].split(":")[0] for text in asks}
    self.assertBetween(len(numbers), 1, 3)
    commits = [e.secs for e in one.commits() if e.host == "n0"]
    self.assertLess(max(b - a for a, b in itertools.pairwise(commits)), 0.5)

  def test_training_goes_on_while_the_place_is_away(self):
    one = self.begin(SimFault(4.0, "stall", (), 25.0), secs=6.0)
    steps = one.machines["n0"].worker.steps
    one.clock.run(8.0)
    self.assertGreater(one.machines["n0"].worker.steps, steps)

  def test_a_place_that_ignores_conditions_is_refused(self):
    one = self.begin(num_nodes=3)
    one.place.ignores_conditions = True
    one.clock.run(25.0)
    for machine in one.machines.values():
      self.assertRegex(str(machine.ended.error), "replaces what is there")

  # What goes wrong is found.

  def test_a_death_that_no_fault_explains(self):
    one = self.begin(secs=4.0)
    one.machines["n1"].kill_worker()
    (found,) = one.run()
    self.assertIn("accuracy: n1 ended: its worker was killed by SIGKILL", found)

  def test_healthy_members_that_end(self):
    """Though no worker is left by then to ask for its state."""
    one = self.begin(secs=4.0)
    known = one.machines["n0"].agent.roster.view
    one.place.open().make(f"views/{known.number + 1}", json_lib.to_plain(views.over(known)))
    found = one.run()
    ends = {v.split(" ends: ")[0].split("copies: ")[1] for v in found if " ends: " in v}
    self.assertEqual(ends, {"n0", "n1", "n2", "n3"}, msg=found)

  def test_a_record_that_changes(self):
    one = self.begin(secs=4.0)
    del one.place.values["views/1"]
    another = views.begin_run(views.EMPTY, "another")
    one.place.open().make("views/1", json_lib.to_plain(another))
    self.assertRegex(one.run()[0], "one: .*another")

  def test_a_wrong_value(self):
    one = self.begin(secs=4.0)
    one.machines["n1"].worker.state += "x"
    one.clock.run(5.0)
    self.assertRegex(one.find_violations()[0], "state: node . in view 1 commits step")

  def test_a_plan_shrinks_to_what_matters(self):
    faults = [SimFault(float(i), "kill", (f"n{i}",)) for i in range(6)]
    fails = lambda p: {f.at_secs for f in p.faults} >= {1.0, 4.0}
    found = plans.shrink(plans.FaultPlan(0, 6, 0, tuple(faults)), fails)
    self.assertEqual(found, plans.FaultPlan(0, 6, 0, (faults[1], faults[4])))
