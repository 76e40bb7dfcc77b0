"""Workers of one program, and their children, are killed; takes some minutes.

What a run without failures comes to is computed in another process meanwhile.
"""

import os
import pathlib
import signal
import time

from tests import samples
from tests.launch import commands

_DEADLINE_SECS = 120


class _ProgramCase(commands.CommandCase):

  CHANGES = {
      "num_steps": 5,
      "model.options.num_blocks": 3,
      "pipeline.executor": "spmd",
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 3,
      "pipeline.num_microbatches": 4,
  }


@samples.only_all
class ProgramTest(_ProgramCase):

  def test_the_program_goes_on(self):
    faults = ("1,0/1,9,kill", "2,,,join", "3,0/0,12,kill")
    recoveries = self.compare(self.write_faults(*faults))
    self.assertEqual([r["rung"] for r in recoveries], ["shadow"] * 2)
    # Steps were finished, not repeated.
    logs = "".join(p.read_text() for p in (self.folder / "killed" / "logs").iterdir())
    self.assertRegex(logs, r"\d+ of 24 passes of share 0 are left")

  def test_a_second_death_in_the_same_step(self):
    """The third node has 12 passes at first, so it dies in those that are left."""
    recoveries = self.compare(self.write_faults("1,0/1,3,kill", "1,0/2,13,kill"))
    self.assertLen(recoveries, 2)


@samples.only_all
class ChildTest(_ProgramCase):

  HELD_FROM = 2

  def test_a_child_that_dies_costs_no_node(self):
    """As if its connections were reset."""
    cluster = self.start("cluster", workdir="killed")
    whole = self.start("train", workdir="whole")
    log = self.folder / "killed" / "metrics.jsonl"
    end_secs = time.monotonic() + _DEADLINE_SECS
    while not (log.exists() and '"step": 2' in log.read_text()):
      self.assertLess(time.monotonic(), end_secs)
      time.sleep(0.1)
    for child in self.find_children("n1"):
      os.kill(child, signal.SIGKILL)
    self.release()
    self.finish(cluster, whole)
    found, want = self.summary("killed"), self.summary("whole")
    self.assertEqual(found["state_sha256"], want["state_sha256"])
    self.assertEqual(found["recoveries"], [])

  def find_children(self, name):
    """Returns the processes that run and compile programs for the worker of a node."""
    workers = {*commands.processes_that_name(f"launch.worker --name={name} ")}
    workers &= {*commands.processes_that_name(str(self.folder))}
    stats = {p: pathlib.Path(f"/proc/{p}/stat").read_text() for p in workers}
    parents = {p: int(stat.rpartition(")")[2].split()[1]) for p, stat in stats.items()}
    # Between the worker and each is a process that forks.
    found = [p for p in workers if parents.get(parents[p]) in workers]
    self.assertNotEmpty(found)
    return found
