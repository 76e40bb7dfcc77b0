"""A cluster that outlives the slots, and the process, of its coordinator.

Takes most of a minute: real processes. What a run without failures comes to is
computed meanwhile.
"""

import os
import pathlib
import signal
import time

from bamboo_jax.metrics import jsonl
from tests.launch import commands


def children_of(pid, log):
  """Returns the child processes of `pid` that write to a log."""
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*"):
    try:
      parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
      output = pathlib.Path(os.readlink(path / "fd" / "1"))
    except OSError:
      continue  # It has ended.
    if parent == pid and output.name == log:
      found.append(int(path.name))
  return found


def wait_until(run, condition):
  while run.poll() is None and not condition():
    time.sleep(0.05)


def num_steps(workdir):
  return len(
      jsonl.column(jsonl.read_lines(workdir / "metrics.jsonl"), "loss")[0]
  )


def kill_with_coordinator(run, workdir, name):
  """Kills the coordinator and the worker of n0 once a node has connected.

  What the next death takes is connected then: no service is needed for it.
  """
  log = workdir / "logs" / f"{name}.log"
  wait_until(run, lambda: log.exists() and "groups ahead" in log.read_text())
  # All do so between the same two steps, so they have when another is done.
  steps = num_steps(workdir)
  wait_until(run, lambda: num_steps(workdir) >= steps + 2)
  for pid in children_of(run.pid, "coordinator.log"):
    os.kill(pid, signal.SIGKILL)
  (agent,) = children_of(run.pid, "n0.agent.log")
  for pid in children_of(agent, "n0.log"):
    os.kill(pid, signal.SIGKILL)


@commands.needs_etcd
class SpareTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 100,
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 3,
      "redundancy.spares": 1,
  }

  def test_a_place_is_taken_when_there_is_a_service_again(self):
    run = self.start("cluster", workdir="moved")
    whole = self.start("train", workdir="whole")
    kill_with_coordinator(run, self.folder / "moved", "n0")
    self.finish(run, whole)
    moved, undisturbed = self.summary("moved"), self.summary("whole")
    self.assertEqual(moved["state_sha256"], undisturbed["state_sha256"])
    self.assertEqual([r["rung"] for r in moved["recoveries"]], ["shadow"])


@commands.needs_etcd
class ErasTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 100,
      "pipeline.num_pipelines": 2,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 4,
  }

  def test_bits_of_the_run_without_failures(self):
    faults = self.write_faults("2,0/1,6,kill", "3,,,join", "90,,,join")
    run = self.start("cluster", faults, "--slots=5", workdir="moved")
    whole = self.start("train", workdir="whole")
    kill_with_coordinator(run, self.folder / "moved", "n4")
    self.finish(run, whole)
    moved, undisturbed = self.summary("moved"), self.summary("whole")
    self.assertEqual(moved["state_sha256"], undisturbed["state_sha256"])
    self.assertEqual([r["rung"] for r in moved["recoveries"]], ["shadow"] * 2)
    logs = (self.folder / "moved" / "logs").glob("n*.log")
    said = "".join(log.read_text() for log in logs)
    self.assertEqual(said.count("Moved to era 1 "), 3)
    self.assertIn("Moved to era 2 ", said)
    self.assertRegex(said, r"Connected [1-9]\d* groups now")  # In a join.
    self.assertNotIn("still in use", said)  # See `coordination.reconnect`.
