"""What a user can get wrong about a cluster: one line, exit status 2."""

import os

from absl.testing import parameterized

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


class ErrorsTest(commands.CommandCase):

  CHANGES = {"pipeline.num_pipelines": 1, "pipeline.num_stages": 2, "pipeline.num_microbatches": 2}

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
