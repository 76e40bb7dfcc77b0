"""Faults are caused on real processes, which sleep here; victims tell of others."""

import os
import signal
import subprocess
import time
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.cluster import children
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.local_cluster import inquiry, strikes
from bamboo_jax.metrics import jsonl
from tests import folders

# The worker of n3 has not started.
_ZONES = {"n0": "a", "n1": "b", "n2": "a", "n3": "c"}
_NUMBERS = {"n0": 2, "n1": 0, "n2": 1}  # Placement has numbered them.


class FakeCluster:
  """Records what agents are told, and the records that are made."""

  run = 5

  def __init__(self, workdir):
    self.workdir = self.logs = workdir
    self.told, self.records, self.made = [], self, {}
    self.find_number = _NUMBERS.get
    self.make = self.made.__setitem__

  def kill_agent(self, name):
    self.told.append(f"kill {name}")

  def give_notice(self, name):
    self.told.append(f"notice {name}")

  def find_running(self, zone):
    return [name for name, own in _ZONES.items() if own == zone]


class StrikesTest(folders.FolderCase):

  def make(self, *lines):
    """Returns the strikes of a cluster with these faults, and three workers."""
    faults = faults_lib.parse_faults("\n".join(lines), source="faults.csv")
    self.cluster, self.workers = FakeCluster(self.folder), {}
    for name in _NUMBERS:
      self.workers[name] = worker = subprocess.Popen(["sleep", "60"])
      self.addCleanup(worker.wait)
      self.addCleanup(worker.kill)
    pids = {name: worker.pid for name, worker in self.workers.items()}
    self.enterContext(mock.patch.object(inquiry, "find_workers", lambda logs: pids))
    return strikes.Strikes(faults, self.cluster)

  def tell(self, kind, line, name="n1", *, run=5, node=None):
    facts = {"kind": kind, "line": line, "number": _NUMBERS[name], "run": run}
    jsonl.note_node(self.folder, jsonl.FAULT, node or name, **facts)

  @parameterized.parameters(
      ("kill", "n2", {"n2": "KILL"}, [], ["n2"]),
      ("stop", "n2", {"n2": "STOP"}, [], ["n2"]),
      ("notice", "n2", {}, ["notice n2"], []),
      ("zone", "b", {}, ["kill n1"], ["n1"]),
      ("zone", "c", {}, ["kill n3"], []),
  )
  def test_what_a_person_causes(self, kind, node, struck, agents, dead):
    one = self.make()
    one.cause(kind, node)
    self.check(struck, agents)
    self.assertEqual(one.kills.keys(), {_NUMBERS[name] for name in dead})

  def test_what_there_is_not(self):
    one = self.make()
    for kind, node in (("kill", "n9"), ("slow", "n9"), ("zone", "d"), ("all", ""), ("x", "n1")):
      with self.assertRaises(ValueError):
        one.cause(kind, node)
    self.check({}, [])

  # It waits for a thread, a tenth of a second or two.
  def test_a_slow_node_runs_part_of_the_time(self):
    one = self.make()
    one.cause("slow", "n1")
    pid, seen = self.workers["n1"].pid, []
    end_secs = time.monotonic() + 20
    while len(seen) < 4 and time.monotonic() < end_secs:
      if [children.is_stopped(pid)] != seen[-1:]:
        seen.append(children.is_stopped(pid))
    self.assertIn(True, seen)
    self.assertIn(False, seen[1:])
    one.cause("stop", "n1")  # It stays stopped.
    self.assertEmpty(one._slow)
    self.check({"n1": "STOP"}, [])

  def test_what_victims_tell(self):
    self.tell("kill", 9)  # In a run before.
    one = self.make()
    for kind, line in (("kill", 1), ("notice", 2), ("slow", 3)):
      self.tell(kind, line, "n2" if kind == "kill" else "n1")
    jsonl.note_node(self.folder, "start", "n7", node="")
    before = time.perf_counter()
    one.read()
    self.assertEqual(one.happened, {1, 2, 3})
    self.assertEqual(one.kills.keys(), {_NUMBERS["n2"]})
    self.assertLess(one.kills[_NUMBERS["n2"]], before)
    self.tell("node", 4, "n1", run=8, node="n8")  # All had died, so numbers count from 0 again.
    self.tell("node", 5, "n2", run=8, node="n9")
    one.read()
    self.assertEqual((len(one.dead), len(one.kills)), (3, 2))
    self.assertGreater(min(one.kills.values()), before)

  def test_a_join_that_all_tell_of_happens_once(self):
    one = self.make("2,,,join", "3,,,join")
    for name in _NUMBERS:
      self.tell("join", 1, name)
    one.read()
    one.cause("join", "")
    self.assertEqual([one.take_joins(), one.take_joins()], [2, 0])
    self.tell("join", 1)
    one.read()
    self.assertEqual(one.take_joins(), 0)

  def test_those_who_come_next_when_nobody_is_left(self):
    one = self.make("3,a,,zone", "5,,,join", "5,,,join", "9,,,join")
    for num_joins in (2, 1):
      self.assertTrue(one.call_next())
      self.assertEqual(one.take_joins(), num_joins)
    self.assertFalse(one.call_next())
    self.assertEqual(one.take_joins(), 0)
    # Members that come see that these have been called.
    self.assertEqual(self.cluster.made, {f"faults/5/{line}": [5, 0] for line in (2, 3, 4)})

  def check(self, struck, agents):
    """Checks what happened to whom, once all who are struck feel it."""
    for name, kind in struck.items():
      worker = self.workers[name]
      if kind == "STOP":
        _, status = os.waitpid(worker.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status))
      else:
        self.assertEqual(worker.wait(20), -signal.SIGKILL)
    for name in _NUMBERS.keys() - struck.keys():
      self.assertIsNone(self.workers[name].poll())
    self.assertEqual(self.cluster.told, agents)
