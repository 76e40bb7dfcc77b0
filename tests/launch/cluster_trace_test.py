"""A cluster of real processes under a trace; takes most of half a minute."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.cluster.store import private_etcd

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_CONFIG = """
from configs import sweep_faults

def get_config():
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 1
  config.num_steps = 40
  config.pipeline.num_pipelines = 1
  config.pipeline.num_stages = 2
  config.pipeline.num_microbatches = 2
  config.checkpoint.every_steps = 0
  config.metrics.plots = False
  return config
"""
# The only node of its zone goes, which has a place for sure; another comes.
_TRACE = """0,add,a/1
0,add,b/1
0,add,b/2
1000,remove,a/1
2000,add,c/1
600000,remove,b/1
"""


def has_etcd():
  try:
    private_etcd.find_binary()
  except OSError:
    return False
  return True


class ClusterTraceTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
    (self.folder / "small.py").write_text(_CONFIG)
    self.trace = self.folder / "trace.csv"
    self.trace.write_text(_TRACE)
    (self.folder / "faults.csv").write_text("3,0/1,6,kill\n")

  def run_cluster(self, *arguments):
    return subprocess.run(
        [
            *(sys.executable, "-m", "launch.cluster"),
            f"--config={self.folder}/small.py",
            f"--workdir={self.folder}/run",
            *(a.replace("FOLDER", str(self.folder)) for a in arguments),
        ],
        cwd=_ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

  @absltest.skipUnless(has_etcd(), "etcd is not installed")
  def test_replay(self):
    done = self.run_cluster("--trace=FOLDER/trace.csv", "--time_scale=10")
    self.assertEqual(done.returncode, 0, msg=done.stdout + done.stderr)
    said = done.stdout.splitlines()
    self.assertIn("trace at_secs=0.1 remove=n0 node=a/1", said)
    self.assertIn("trace at_secs=0.2 add=n3 node=c/1", said)
    self.assertIn("Node n0 ended with SIGKILL.", said)
    self.assertLess(
        [line.startswith("step=1 ") for line in said].index(True),
        said.index("trace at_secs=0.1 remove=n0 node=a/1"),
    )
    summary = json.loads((self.folder / "run" / "summary.json").read_text())
    self.assertEqual(summary["steps"], 40)
    (recovery,) = summary["recoveries"]
    self.assertEqual(recovery["rung"], "shadow")
    self.assertGreater(recovery["kill_to_step_end_secs"], 0.0)

  @parameterized.parameters(
      (["--trace=FOLDER/no.csv"], "no.csv: No such file"),
      (
          ["--trace=FOLDER/trace.csv", "--faults=FOLDER/faults.csv"],
          "Give one of --faults and --trace, not both",
      ),
      (["--time_scale=60"], "--time_scale needs a --trace"),
      (
          ["--trace=FOLDER/trace.csv", "--time_scale=0"],
          "time_scale must be above 0, got 0.0",
      ),
      (
          ["--trace=FOLDER/trace.csv", "--nodes=1"],
          "need at least 2 nodes, got a trace that starts with 1",
      ),
  )
  def test_bad_input(self, arguments, problem):
    done = self.run_cluster(*arguments)
    self.assertEqual(done.returncode, 2)
    self.assertIn(problem, done.stderr)
    self.assertFalse((self.folder / "run").exists())
