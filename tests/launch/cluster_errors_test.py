"""What a user can get wrong about a cluster: one line, exit status 2."""

import os
import subprocess
import sys

from absl.testing import parameterized

from bamboo_jax.checkpoint import manifest
from bamboo_jax.cluster import judge, records as records_lib, views
from bamboo_jax.net import identity
from tests import members, samples
from tests.launch import commands

_MINE = """
from bamboo_jax.data import markov
from bamboo_jax.data import samples


def make_data(sequence_length, bad=-1):
  base = markov.make_walks(sequence_length=sequence_length, vocab_size=16)

  def batch(indices, *, seed):
    if bad in indices:
      raise KeyError("label")
    return base.batch(indices, seed=seed)

  return samples.Source({"source": "mine"}, 0, batch, base.heldout_batch)

class Logger:
  def log(self, step, metrics):
    return metrics[f"loss_of_step_{step}" if step == 4 else "loss"]

  def event(self, name, step, values):
    pass

  close = event

def make_logger(config, workdir):
  return Logger()
"""


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


class FailingCase(commands.CommandCase):

  CHANGES = {"pipeline.num_pipelines": 1, "pipeline.num_stages": 2, "pipeline.num_microbatches": 2}

  def fail_training(self, command, *arguments, code=2):
    """Returns the line that a command ends with."""
    run = commands.fork(
        *("-m", f"launch.{command}"),
        f"--config={self.config}",
        f"--workdir={self.folder / 'run'}",
        *arguments,
    )
    self.assertEqual(run.returncode, code, msg=run.stdout + run.stderr)
    self.assertEqual(run.stderr.count("\n"), 1, msg=run.stderr)
    self.assertStartsWith(run.stderr, "error: ")
    return run.stdout + run.stderr

  def fail_agent(self, *arguments, code=2):
    return self.fail_training("agent", "--name=n0", *arguments, code=code)

  def fail_cluster(self, *arguments):
    return self.fail_training("cluster", *arguments)


class ErrorsTest(FailingCase):

  def test_workers_that_take_more_than_a_gpu(self):
    said = self.fail_cluster("--nodes=3", "--device_memory_fraction=0.4")
    self.assertIn("must be above 0 and at most 0.333", said)

  def test_nothing_starts_before_the_config_is_checked(self):
    said = self.fail_cluster("--config.pipeline.executor=spmd", "--config.recovery.slow=remove")
    self.assertStartsWith(
        said,
        "error: config.recovery.slow='remove' needs executor='rows': passes are "
        "not measured; take 'report'.",
    )
    self.assertFalse((self.folder / "run").exists())

  @parameterized.parameters("", "1")  # Starts Python with JAX: some 5 s each.
  def test_a_full_disk_of_its_output(self, is_unbuffered):
    """It ends no run, but the command says at its end that lines are missing."""
    with open("/dev/full", "w") as full:
      done = subprocess.run(
          [
              sys.executable,
              "-c",
              _CLUSTER,
              f"--config={self.config}",
              f"--workdir={self.folder}/run",
          ],
          cwd=commands.ROOT,
          env={**os.environ, **self.ENVIRON, "PYTHONUNBUFFERED": is_unbuffered},
          stdout=full,
          stderr=subprocess.PIPE,
          text=True,
          timeout=120,
      )
    self.assertEqual(done.returncode, 2, msg=done.stderr)
    self.assertRegex(done.stderr, "^error: .*No space left on device.*\n$")

  @samples.only_all
  def test_a_workdir_of_another_run(self):
    self.finish(self.start("train", "--config.num_steps=1"))
    said = self.fail_cluster("--config.seed=7")
    self.assertRegex(
        said,
        "(?m)^error: The checkpoint of step 1 in .*/run/checkpoints is of another "
        "run: config.seed is 0 there, 7 here. Choose another workdir, or the "
        "former config",
    )
    self.assertFalse((self.folder / "run/logs").exists())

  @parameterized.parameters(("missing", "No such file", 1), ("", "must be a file, not a folder", 2))
  def test_secret(self, name, message, code):
    secret = f"--secret={self.folder / name}"
    said = self.fail_agent(secret, code=code)
    self.assertIn(message, said)

  def test_certificates(self):
    said = self.fail_agent(f"--certificates={self.folder}")
    self.assertIn("must hold authority.pem, certificate.pem, key.pem", said)

  def test_certificates_do_not_sign_records(self):
    flags = "--host=0.0.0.0", f"--certificates={self.folder}"
    self.assertIn("is all addresses of this", self.fail_agent(*flags))

  @parameterized.parameters(
      ("--zones=", "--zones must be names"),
      ("--zones=a,,b", "--zones must be names such as a,b,c, got 'a,,b'"),
      ("--nodes=1", "need at least 2 nodes, got --nodes=1"),
      ("--trace={folder}/no.csv", "no.csv: No such file"),
      ("--time_scale=60", "--time_scale has no effect without --trace."),
      ("--trace={folder}/t.csv --nodes=1", "need at least 2 nodes, got a trace that starts with 1"),
  )
  def test_arguments(self, arguments, message):
    (self.folder / "t.csv").write_text("0,add,a/1\n1000,add,b/1\n")
    said = self.fail_cluster(*arguments.format(folder=self.folder).split())
    self.assertIn(message, said)
    self.assertFalse((self.folder / "run").exists())

  def test_a_run_of_another_config(self):
    """One of its members lives, and says so."""
    (self.folder / "run").mkdir()
    secret = identity.read_secret(identity.draw_secret(self.folder / "run"))
    records = records_lib.Records(self.folder / "run", identity.find_entry_key(secret))
    judge.make_view(records, views.EMPTY, members.view(1, 0))
    records.make("run/0", judge.describe_run({}))
    with members.answering(records, "n0"):
      said = self.fail_agent()
    self.assertRegex(said, "This node does not fit the run in .*/run: .* is absent there and ")

  def test_a_worker_that_dies_at_start(self):
    said = self.fail_cluster("--config.plan.memory_limit_gib=1e-6")
    self.assertIn("\nerror: No split of 4 layers into 2 stages fits", said)

  @samples.only_all
  def test_an_error_that_every_node_would_meet(self):
    """All save the last step; the second run is of another kind of code."""
    (self.folder / "mine.py").write_text(_MINE)
    name = f"--config.data.name={self.folder / 'mine.py'}:make_data"
    said = self.fail_cluster(name, "--config.data.options.bad=9")
    self.assertRegex(said, r"\nerror: Cannot read sample 9: .*/mine.py:\d+: KeyError: 'label' ?\n")
    saved = [name.step for name in manifest.find(self.folder / "run/checkpoints")]
    self.assertEqual(saved, [2])
    self.assertNotIn("nodes are left", said)
    self.assertFalse((self.folder / "run/summary.json").exists())
    logger = f"--config.metrics.logger={self.folder / 'mine.py'}:make_logger"
    said = self.fail_cluster(name, logger)  # It goes on from there.
    self.assertRegex(
        said,
        r"\nerror: The logger .*/mine.py:make_logger' raised .*/mine.py:\d+: "
        r"KeyError: 'loss_of_step_4' ?\n",
    )
    saved = [name.step for name in manifest.find(self.folder / "run/checkpoints")]
    self.assertEqual(saved, [2, 4])
