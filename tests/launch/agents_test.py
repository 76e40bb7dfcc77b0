"""Agents that are started by hand, one by one, as on several machines.

Loopback addresses stand for machines. One cluster goes through a refused agent, steps, a notice
and the end of the run; takes most of half a minute, as workers import JAX.
"""

import os
from unittest import mock

from absl.testing import parameterized

from tests import notice_server
from tests.launch import commands

# `bamboo cluster` of nodes that do all their steps at once.
_CLUSTER = """
import runpy
from bamboo_jax.local_cluster import cluster_run


def train(run):
  run._progress.show_step(1, {"loss": 2.0})


cluster_run.ClusterRun._train = train
cluster_run.ClusterRun.report = lambda run: run._progress.show_text("state_sha256=0")
runpy.run_module("launch.cluster", run_name="__main__", alter_sys=True)
"""


class AgentsTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 100,
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "redundancy.spares": 1,
  }
  HELD_FROM = 2

  def setUp(self):
    super().setUp()
    self.cloud = notice_server.NoticeServer()
    self.addCleanup(self.cloud.close)

  def start_agent(self, number, *arguments):
    names = (f"--name=n{number}", f"--zone=z{number}", f"--host=127.0.0.{number + 1}")
    return self.start("agent", *names, *arguments)

  def has_stepped(self):
    log = self.folder / "run" / "metrics.jsonl"
    return log.exists() and b'"loss"' in log.read_bytes()

  def test_one_of_three_machines_is_preempted(self):
    with self.phase("start"):
      gcp = ("--notice=gcp", f"--notice_url={self.cloud.url}")
      agents = [self.start_agent(0), self.start_agent(1, *gcp), self.start_agent(2)]
      self.wait_for(self.has_stepped, "first step")
    with self.phase("an agent of another environment"):
      with mock.patch.dict(os.environ, {"JAX_THREEFRY_PARTITIONABLE": "0"}):
        other = self.start_agent(8)
      said, _ = other.communicate(timeout=300)
      self.assertEqual(other.returncode, 2, msg=said)
      self.assertIn('environment.JAX_THREEFRY_PARTITIONABLE is absent there and "0" here.', said)
    with self.phase("notice"):
      self.cloud.announced = {"gcp"}
      agents[1].communicate(timeout=300)
      self.assertEqual(agents[1].returncode, 143)
    with self.phase("end"):
      self.release()
      said = self.finish(*agents[::2])
      self.assertEqual(self.summary()["steps"], 100)
      for text in said:
        self.assertRegex(text, r"n2 joined \(zone z2\); \d of 3 nodes are here")
        self.assertIn("n1 left: handed over after a notice", text)
        self.assertRegex(text, r"(?s)step=1 loss=.*step=100 .*state_sha256=\w{64}")
      programs = (self.folder / "run" / "programs").glob("*.xla")
      self.assertNotEmpty([*programs])  # What one compiles all machines have.
      shown = commands.fork("-m", "launch.status", f"--workdir={self.folder}/run").stdout
      self.assertRegex(shown, r"^run=run view=\d+ step=100 num_steps=100 ")
      self.assertRegex(shown, r"(?m)^over, run time \d+ s$")
      self.assertIn("n1 left: handed over after a notice", shown)
    with self.phase("a run without failures"):
      want = self.start("train", workdir="whole")
      self.assertIn(self.summary()["state_sha256"], self.finish(want)[0])

  @parameterized.parameters("", "1")  # Starts Python with JAX: some 5 s each.
  def test_a_full_disk_of_its_output(self, is_unbuffered):
    """It ends no run, but the command says at its end that lines are missing."""
    environ = {**os.environ, **self.ENVIRON, "PYTHONUNBUFFERED": is_unbuffered}
    given = (f"--config={self.config}", f"--workdir={self.folder}/run")
    with open("/dev/full", "w") as full:
      done = commands.run("-c", _CLUSTER, *given, stdout=full, env=environ)
    self.assertEqual(done.returncode, 2, msg=done.stderr)
    self.assertRegex(done.stderr, "^error: .*No space left on device.*\n$")

  def test_an_agent_whose_secret_is_not_there_yet(self):
    given = (f"--config={self.config}", f"--workdir={self.folder}/run", "--name=n0")
    done = commands.fork("-m", "launch.agent", *given, f"--secret={self.folder}/missing")
    self.assertEqual(done.returncode, 1, msg=done.stdout)
    self.assertRegex(done.stderr, "^error: .*No such file.*\n$")
