"""What a user can get wrong about a cluster: one line, exit status 2."""

import os
import subprocess
import sys

from absl.testing import parameterized

from bamboo_jax.cluster import judge, records as records_lib, views
from bamboo_jax.net import identity
from tests import members
from tests.launch import commands

# `bamboo cluster` of nodes that do all their steps at once.
_CLUSTER = """
import runpy
from bamboo_jax.local_cluster import cluster_run


class Run:
  ask_to_stop = lambda self: False
  find_missed = lambda self: []
  report = lambda self: self.progress.show_text("state_sha256=0")

  def __init__(self, setup, progress, cluster, direct):
    self.progress = progress

  def run(self, config):
    self.progress.show_step(1, {"loss": 2.0})


cluster_run.ClusterRun = Run
runpy.run_module("launch.cluster", run_name="__main__", alter_sys=True)
"""


class ErrorsTest(commands.CommandCase):

  CHANGES = {"pipeline.num_pipelines": 1, "pipeline.num_stages": 2, "pipeline.num_microbatches": 2}

  def fail_training(self, command, *arguments, code=2):
    """Returns the line that a command ends with."""
    given = (f"--config={self.config}", f"--workdir={self.folder / 'run'}", *arguments)
    run = commands.fork("-m", f"launch.{command}", *given)
    self.assertEqual(run.returncode, code, msg=run.stdout + run.stderr)
    self.assertEqual(run.stderr.count("\n"), 1, msg=run.stderr)
    self.assertStartsWith(run.stderr, "error: ")
    return run.stdout + run.stderr

  @parameterized.parameters("", "1")  # Starts Python with JAX: some 5 s each.
  def test_a_full_disk_of_its_output(self, is_unbuffered):
    """It ends no run, but the command says at its end that lines are missing."""
    command = [sys.executable, "-c", _CLUSTER, f"--config={self.config}"]
    with open("/dev/full", "w") as full:
      done = subprocess.run(
          [*command, f"--workdir={self.folder}/run"],
          cwd=commands.ROOT,
          env={**os.environ, **self.ENVIRON, "PYTHONUNBUFFERED": is_unbuffered},
          stdout=full,
          stderr=subprocess.PIPE,
          text=True,
          timeout=120,
      )
    self.assertEqual(done.returncode, 2, msg=done.stderr)
    self.assertRegex(done.stderr, "^error: .*No space left on device.*\n$")

  @parameterized.parameters(
      ("--zones=", "--zones must be names"),
      ("--zones=us/a,/b", "A zone must be a name such as a, or region/zone such as us/a, got '/b'"),
      ("--zones=a,,b", "--zones must be names such as a,b,c, got 'a,,b'"),
      ("--nodes=1", "need at least 2 nodes, got --nodes=1"),
      ("--trace={folder}/no.csv", "no.csv: No such file"),
      ("--time_scale=60", "--time_scale has no effect without --trace."),
      ("--trace={folder}/t.csv --nodes=1", "need at least 2 nodes, got a trace that starts with 1"),
      ("--nodes=3 --device_memory_fraction=0.4", "must be above 0 and at most 0.333"),
      (
          "--config.pipeline.executor=spmd --config.recovery.slow=remove",
          "error: config.recovery.slow='remove' needs executor='rows': passes are not measured",
      ),
  )
  def test_arguments(self, arguments, message):
    (self.folder / "t.csv").write_text("0,add,a/1\n1000,add,b/1\n")
    said = self.fail_training("cluster", *arguments.format(folder=self.folder).split())
    self.assertIn(message, said)
    self.assertFalse((self.folder / "run").exists())

  @parameterized.parameters(
      ("--secret={folder}/missing", "No such file", 1),
      ("--secret={folder}", "must be a file, not a folder"),
      ("--certificates={folder}", "must hold authority.pem, certificate.pem, key.pem"),
      ("--zone=us/", "or region/zone such as us/a, got 'us/'"),
      ("--host=0.0.0.0 --certificates={folder}", "is all addresses of this"),
  )
  def test_arguments_of_agents(self, arguments, message, code=2):
    given = arguments.format(folder=self.folder).split()
    self.assertIn(message, self.fail_training("agent", "--name=n0", *given, code=code))

  def test_a_run_of_another_config(self):
    """One of its members lives, and says so."""
    (self.folder / "run").mkdir()
    secret = identity.read_secret(identity.draw_secret(self.folder / "run"))
    records = records_lib.Records(self.folder / "run", identity.find_entry_key(secret))
    judge.make_view(records, views.EMPTY, members.view(1, 0))
    records.make("run/0", judge.describe_run({}))
    with members.answering(records, "n0"):
      said = self.fail_training("agent", "--name=n0")
    self.assertRegex(said, "This node does not fit the run in .*/run: .* is absent there and ")

  def test_a_worker_that_dies_at_start(self):
    said = self.fail_training("cluster", "--config.plan.memory_limit_gib=1e-6")
    self.assertIn("\nerror: No split of 4 layers into 2 stages fits", said)
