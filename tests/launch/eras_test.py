"""A cluster that outlives the slots, and the process, of its coordinator.

Takes most of a minute: real processes. What a run without failures comes to is
computed meanwhile.
"""

import os
import pathlib
import signal
import time

from tests.launch import commands


def children_of(pid, module):
  """Returns the child processes of `pid` that run a module."""
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*"):
    try:
      parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
      command = (path / "cmdline").read_bytes().split(b"\0")
    except OSError:
      continue  # It has ended.
    if parent == pid and module.encode() in command:
      found.append(int(path.name))
  return found


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
    # What the next death takes is connected: no service is needed for it.
    newcomer = self.folder / "moved" / "logs" / "n4.log"
    while run.poll() is None and not (
        newcomer.exists() and "groups ahead" in newcomer.read_text()
    ):
      time.sleep(0.05)
    for pid in children_of(run.pid, "launch.coordinator"):
      os.kill(pid, signal.SIGKILL)
    agents = children_of(run.pid, "launch.agent")
    workers = [w for a in agents for w in children_of(a, "launch.worker")]
    os.kill(min(workers), signal.SIGKILL)
    self.finish(run, whole)
    moved, undisturbed = self.summary("moved"), self.summary("whole")
    self.assertEqual(moved["state_sha256"], undisturbed["state_sha256"])
    self.assertEqual([r["rung"] for r in moved["recoveries"]], ["shadow"] * 2)
    logs = (self.folder / "moved" / "logs").glob("n*.log")
    said = "".join(log.read_text() for log in logs)
    self.assertEqual(said.count("Moved to era 1 "), 3)
    self.assertIn("Moved to era 2 ", said)
    self.assertNotIn("still in use", said)  # See `coordination.reconnect`.
