"""Faults are carried out on real processes, which sleep here."""

import errno
import os
import signal
import socket
import subprocess
import time
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.cluster import children, frames
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.local_cluster import director

# The worker of n3 has not connected.
_ZONES = {"n0": "a", "n1": "b", "n2": "a", "n3": "c"}
_NUMBERS = {"n0": 2, "n1": 0, "n2": 1}  # Placement has numbered them.


class FakeNodes:
  """Records what agents are told."""

  def __init__(self):
    self.told = []

  def kill_agent(self, name):
    self.told.append(f"kill {name}")

  def give_notice(self, name):
    self.told.append(f"notice {name}")

  def leader(self):
    return "n1"

  def find_running(self, zone):
    return [name for name, own in _ZONES.items() if own == zone]


class DirectorTest(parameterized.TestCase):

  def direct(self, line):
    """Starts a director of a fault and a join, and three workers.

    Each of them reports the join, so it is known to the director afterwards.
    """
    self.nodes = FakeNodes()
    self.director = director.Director(
        faults_lib.parse_faults(f"{line}\n3,,,join", source="faults.csv"), self.nodes
    )
    self.director.step_secs = 0.0
    self.director.listen()
    self.workers, self.sockets = {}, {}
    for name, number in _NUMBERS.items():
      worker = subprocess.Popen(["sleep", "60"])
      self.addCleanup(worker.wait)
      self.addCleanup(worker.kill)
      self.workers[name] = worker
      connection = self.connect()
      connection.settimeout(20)
      self.sockets[name] = connection
      self.report(name, {"number": number, "name": name, "pid": worker.pid}, {"line": 2})

  def connect(self):
    connection = socket.socket(socket.AF_UNIX)
    self.addCleanup(connection.close)
    connection.connect(f"\0{self.director.address}")
    return connection

  def report(self, name, *messages):
    """Lets a worker say something, and waits for the answer."""
    for message in messages:
      self.sockets[name].sendall(frames.encode(message))
    self.assertTrue(self.sockets[name].recv(1 << 10))

  def test_idle_callers_use_up_no_files(self):
    self.direct("3,0/0,6,kill")
    idle = [self.connect() for _ in range(director._MAX_STRANGERS + 20)]
    for caller in idle[:20]:
      caller.settimeout(20)
      self.assertEqual(caller.recv(1), b"")
    self.report("n2", {"line": 1, "owner": _NUMBERS["n1"]})
    self.check({"n1": "KILL"}, [])

  def test_no_files_are_left(self):
    errors = [OSError(errno.EMFILE, "Too many open files")] * 2
    accept = socket.socket.accept

    def refuse(listener):
      if errors:
        raise errors.pop()
      return accept(listener)

    with (
        mock.patch.object(socket.socket, "accept", refuse),
        self.assertLogs("absl", "WARNING") as logged,
    ):
      self.direct("3,0/0,6,kill")
    self.assertIn("Too many open files", logged.output[0])
    self.report("n2", {"line": 1, "owner": _NUMBERS["n1"]})
    self.check({"n1": "KILL"}, [])

  @parameterized.named_parameters(
      ("kill", "3,0/0,6,kill", {"n1": "KILL"}, []),
      ("node", "3,0/0,6,node", {"n1": "KILL"}, ["kill n1"]),
      ("stop", "3,0/0,6,stop", {"n1": "STOP"}, []),
      ("notice", "3,0/0,6,notice", {}, ["notice n1"]),
  )
  def test_owner_of_a_place(self, line, struck, agents):
    self.direct(line)
    self.report("n2", {"line": 1, "owner": _NUMBERS["n1"]})
    self.check(struck, agents)

  @parameterized.named_parameters(
      ("name", "3,n2,,node", {"n2": "KILL"}, ["kill n2"]),
      ("leader", "3,,,leader", {"n1": "KILL"}, ["kill n1"]),
      ("zone", "3,a,,zone", {"n0": "KILL", "n2": "KILL"}, ["kill n0", "kill n2"]),
      ("all", "3,,,all", dict.fromkeys(_NUMBERS, "KILL"), []),
  )
  def test_at_any_time(self, line, struck, agents):
    self.direct(line)
    self.report("n2", {"line": 1})
    self.check(struck, agents)

  def test_a_slow_node_of_a_file_is_not_suspended(self):
    self.direct("3,0/0,,slow:4")
    self.report("n2", {"line": 1, "owner": _NUMBERS["n1"]})
    self.check({}, [])
    self.assertEqual(self.director.happened, {1, 2})

  # It waits for a thread, a tenth of a second or two.
  def test_a_slow_node_runs_part_of_the_time(self):
    self.direct("3,n0,,kill")
    self.director.cause("slow", "n1")
    pid, seen = self.workers["n1"].pid, []
    end_secs = time.monotonic() + 20
    while len(seen) < 4 and time.monotonic() < end_secs:
      if [children.is_stopped(pid)] != seen[-1:]:
        seen.append(children.is_stopped(pid))
    self.assertIn(True, seen)
    self.assertIn(False, seen[1:])
    self.director.cause("stop", "n1")  # It stays stopped.
    self.assertEqual(self.director._slow, {})
    self.check({"n1": "STOP"}, [])

  @parameterized.parameters(
      ("kill", "n2", {"n2": "KILL"}, []),
      ("stop", "n2", {"n2": "STOP"}, []),
      ("notice", "n2", {}, ["notice n2"]),
      ("zone", "b", {"n1": "KILL"}, ["kill n1"]),
      ("zone", "c", {}, ["kill n3"]),
  )
  def test_what_a_person_causes(self, kind, node, struck, agents):
    self.direct("3,n0,,kill")
    self.director.cause(kind, node)
    self.check(struck, agents)

  def test_a_person_joins_a_node_or_names_none(self):
    self.direct("3,n0,,kill")
    self.assertEqual(self.director.take_joins(), 1)  # That of the file.
    self.director.cause("join", "")
    self.assertEqual(self.director.take_joins(), 1)
    for kind, node in (("kill", "n9"), ("zone", "d"), ("all", ""), ("x", "n1")):
      with self.assertRaises(ValueError):
        self.director.cause(kind, node)
    self.check({}, [])

  def test_a_join_that_all_report_happens_once(self):
    self.direct("3,n0,,kill")
    self.assertEqual(self.director.take_joins(), 1)
    self.assertEqual(self.director.take_joins(), 0)
    self.check({}, [])

  def test_all_are_asked_to_stop_also_those_that_come_later(self):
    self.direct("3,n0,,kill")
    self.sockets["n1"].close()  # As of a dead one.
    self.director.stop()
    for name in ("n0", "n2"):
      said = frames.Decoder().feed(self.sockets[name].recv(1 << 10))
      self.assertEqual(said, [{"stop": True}])
    late = self.connect()
    late.settimeout(20)
    late.sendall(frames.encode({"number": 7, "name": "n7", "pid": 1}))
    said = frames.Decoder().feed(late.recv(1 << 10))
    self.assertEqual(said, [{"stop": True}])

  def test_those_who_come_next_when_nobody_is_left(self):
    lines = ["3,a,,zone", "5,,,join", "5,,,join", "9,,,join"]
    faults = faults_lib.parse_faults("\n".join(lines), source="faults.csv")
    one = director.Director(faults, FakeNodes())
    for num_joins in (2, 1):
      self.assertTrue(one.call_next())
      self.assertEqual(one.take_joins(), num_joins)
    self.assertFalse(one.call_next())
    self.assertEqual(one.take_joins(), 0)

  def test_kill_of_a_node_that_does_not_train_yet(self):
    self.direct("3,n0,,kill")
    self.assertEqual([*map(self.director.has_joined, ("n0", "n9"))], [True, False])
    self.director.kill_node("n9")
    self.check({}, ["kill n9"])

  def test_another_user_is_refused(self):
    self.direct("3,n0,,kill")
    with (
        mock.patch.object(os, "getuid", return_value=os.getuid() + 1),
        self.assertLogs("absl", "WARNING") as logs,
    ):
      for _ in range(100):
        stranger = self.connect()
        stranger.settimeout(20)
        self.assertEqual(stranger.recv(1), b"")
    self.assertLess(len(logs.output), 20)
    self.check({}, [])

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
    numbers = {_NUMBERS[name] for name in struck}
    self.assertEqual(self.director.kills.keys(), numbers)
    self.assertEqual(self.nodes.told, agents)
