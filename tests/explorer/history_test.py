"""Histories violate no invariant and repeat exactly; violations made on purpose are found.

Also the views after a single fault: members, time, reason.
"""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import views
from tests import samples
from tests.explorer import __main__ as explorer, history, mutants, plans, worker
from tests.explorer.plans import SimFault

_COURSES = """
from tests.explorer import history, plans

for mode in sorted(plans.MODES):
  plan = plans.draw(mode, 3)
  assert plan == plans.draw(mode, 3)
  one = history.ClusterHistory(plan)
  one.clock.run(8.0)
  print(mode, [event for event in one.trace if isinstance(event[2], str)])
"""
_DRAWN = [
    (f"{mode}_{seed}", plans.draw(mode, seed))
    for mode in sorted(plans.MODES)
    for seed in samples.draw(range(20), 4 if mode == "ask" else 1, topic=mode)
]
_CORPUS = [
    (path.stem, json_lib.from_plain(plans.FaultPlan, json.loads(path.read_text())))
    for path in sorted((pathlib.Path(__file__).parent / "corpus").glob("*.json"))
]


class HistoryCase(parameterized.TestCase):

  def begin(self, *faults, secs=4.0, num_nodes=4):
    plan = plans.FaultPlan(2, num_nodes, 0, faults)
    self.history = history.ClusterHistory(plan)
    self.addCleanup(self.history.close)
    self.nodes = self.history.machines
    self.run_for(secs)

  def run_for(self, secs):
    self.history.clock.run_for(secs)
    self.assertEqual(self.history.find_violations(), [])

  def view(self, host="n3"):
    return self.nodes[host].agent.roster.view

  def check(self, number, members):
    """Checks which nodes live, and that all are in the same view."""
    found = {
        host: (self.view(host).number, " ".join(sorted(m.name for m in self.view(host).members)))
        for host, node in self.nodes.items()
        if node.is_alive
    }
    self.assertEqual(found, {h: (number, members) for h in members.split()})


class HistoryTest(HistoryCase):

  @parameterized.named_parameters(*_DRAWN, *samples.draw(_CORPUS, 30, topic="corpus"))
  def test_nothing_is_violated(self, plan):
    self.assertEqual(history.explore(plan), [], msg=plan)

  def test_the_same_happens_each_time(self):
    courses = [
        subprocess.Popen(
            [sys.executable, "-c", _COURSES],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in "12"  # Of the hashes of strings, which order sets.
    ]
    one, other = (p.communicate()[0].splitlines() for p in courses)
    self.assertLen(one, len(plans.MODES))
    self.assertEqual(one, other)

  def test_a_newcomer_asks_and_is_answered_and_no_step_waits(self):
    self.begin(SimFault(6.0, "apart", ("n4",), 70.0), SimFault(6.0, "join", ("n4",)), secs=70.0)
    said = [text for _, _, text in self.history.events(str)]
    asks = [text for text in said if "n4 asks whether any" in text]
    self.assertNotEmpty([text for text in said if text.endswith(" is alive")])
    # It was answered twice or more, and then waits for longer each time.
    numbers = {text.split("View ")[1].split(":")[0] for text in asks}
    self.assertBetween(len(numbers), 1, 3)
    commits = [secs for secs, host, _ in self.history.commits() if host == "n0"]
    self.assertLess(max(b - a for a, b in itertools.pairwise(commits)), 2 * worker.STEP_SECS)

  def test_training_goes_on_while_the_place_is_away(self):
    self.begin(SimFault(4.0, "hang_judge", (), 25.0), secs=6.0)
    steps = self.nodes["n0"].worker.steps
    self.run_for(2.0)
    self.assertGreater(self.nodes["n0"].worker.steps, steps)

  # Violations are found.

  def test_a_place_that_ignores_conditions_is_refused(self):
    self.begin(num_nodes=3, secs=0.0)
    self.history.place.ignores_conditions = True
    self.history.clock.run(25.0)
    for machine in self.nodes.values():
      self.assertRegex(str(machine.ended.error), "replaces what is there")

  def replace_record(self):
    del self.history.place.values["views/1"]
    self.make_record(1, views.begin_run(views.EMPTY, "another"))

  def make_record(self, number, view):
    self.history.place.records.make(f"views/{number}", json_lib.to_plain(view))

  @parameterized.named_parameters(
      (
          "a_death_that_no_fault_explains",
          lambda test: test.nodes["n1"].kill_worker(),
          "^[^\n]*accuracy: n1 ended: its worker was killed by SIGKILL[^\n]*$",
      ),
      # Although no worker is left whose state could be asked for.
      (
          "healthy_members_that_end",
          lambda test: test.make_record(2, views.over(test.view())),
          "(?s)(copies: n[0-3] ends: .*){4}",
      ),
      ("a_record_that_changes", lambda test: test.replace_record(), "^[^\n]*one: .*another"),
      (
          "a_wrong_value",
          lambda test: setattr(test.nodes["n1"].worker, "state", "x"),
          "^[^\n]*state: node . in view 1 commits step",
      ),
  )
  def test_what_must_not_be(self, happens, found):
    self.begin()
    happens(self)
    self.assertRegex("\n".join(self.history.run()), found)

  def test_a_plan_shrinks_to_what_matters(self):
    faults = [SimFault(float(i), "kill", (f"n{i}",)) for i in range(6)]
    fails = lambda p: {f.at_secs for f in p.faults} >= {1.0, 4.0}
    found = plans.shrink(plans.FaultPlan(0, 6, 0, tuple(faults)), fails)
    self.assertEqual(found, plans.FaultPlan(0, 6, 0, (faults[1], faults[4])))

  # The commands.

  def run_quietly(self, call, *args, **options):
    with contextlib.redirect_stdout(io.StringIO()) as said:
      status = call(*args, **options)
    return status, said.getvalue().splitlines()

  @parameterized.parameters(
      ([[], []], False, 0, ["mode=net histories=2 violations=0"]),
      ([[], ["a"], ["b", "c"]], False, 1, [*"abc", "mode=net histories=3 violations=2"]),
      ([[], ["a"], ["b"]], True, 1, ["a", "mode=net histories=2 violations=1"]),
  )
  def test_what_is_told(self, histories, only_first, status, lines):
    found = self.run_quietly(explorer.tell, "net", histories, only_first=only_first)
    self.assertEqual(found, (status, lines))

  def test_histories(self):
    flags = "--mode=wire --first_seed=7 --seeds=11 --num_processes=1".split()
    found = self.run_quietly(explorer.main, flags)
    self.assertEqual(found, (0, ["mode=wire histories=11 violations=0"]))

  def test_the_code_of_each_mutant_is_there_once(self):
    for name, (mode, edits) in mutants.read().items():
      self.assertIn(mode, explorer.MODES)
      for edit in edits:
        source = (pathlib.Path(__file__).parents[2] / edit["@"]).read_text()
        self.assertEqual(source.count(edit["-"]), 1, msg=(name, edit))


class ScenariosTest(HistoryCase):

  @parameterized.parameters(
      ("n2", "n0 n1 n3", 0.1),
      ("n0", "n1 n2 n3", 0.1),
      ("n1 n2", "n0 n3", 0.1),
      ("n0 n1", "n2 n3", 0.1),
      ("n0 n1 n2", "n3", 6.0),  # It asks first: a firewall may refuse on behalf of the others.
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

  def test_a_death_while_all_machines_are_away_again_and_again(self):
    """Each for half of the time, at different times: a stop begins every 0.4 s."""
    limits = dataclasses.replace(history._LIMITS, heartbeat_secs=0.1)
    self.enter_context(mock.patch.object(history, "_LIMITS", limits))
    pulses = (
        SimFault(4.0 + 0.4 * i + 1.6 * k, "freeze", (f"n{i}",), 0.8)
        for i in range(4)
        for k in range(20)
    )
    plan = plans.FaultPlan(1, 4, 0, (*pulses, SimFault(8.0, "kill", ("n3",))))
    one = history.ClusterHistory(plan)
    with contextlib.closing(one):
      one.clock.run(12.0)
      self.assertEqual(one.find_violations(), [])
      for host in ("n0", "n1", "n2"):
        found = one.machines[host].agent.roster.view
        self.assertEqual({m.host for m in found.members}, {"n0", "n1", "n2"})

  def test_a_notice(self):
    self.begin()
    self.nodes["n1"].notice()
    self.history.start("n4")
    self.run_for(0.5)
    self.nodes["n4"].notice()
    self.run_for(1.0)
    self.assertIn("has not joined yet", self.nodes["n4"].ended.reason)
    self.check(2, "n0 n1 n2 n3")
    self.assertEqual(self.view().leaving, (self.nodes["n1"].agent.roster.me.number,))

  def test_the_name_of_a_dead_node(self):
    self.begin()
    self.nodes["n1"].vanish()
    self.history.start("n9", name="n1")
    self.run_for(20.0)
    self.assertEqual({m.host for m in self.view().members}, {"n0", "n2", "n3", "n9"})

  def test_a_run_begins_with_those_who_are_there(self):
    self.begin(secs=0.5)
    self.nodes["n2"].kill()
    self.run_for(15.0)
    self.check(1, "n0 n1 n3")
    self.assertGreater(self.nodes["n0"].worker.steps, 4)
