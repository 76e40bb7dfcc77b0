"""A cluster of real processes, three of which are killed; takes a minute.

What a run without failures comes to is computed in this process meanwhile.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest

from bamboo_jax.cluster.store import private_etcd
from bamboo_jax.metrics import jsonl

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_CONFIG = """
from configs import sweep_faults

def get_config():
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 1
  config.num_steps = 6
  config.pipeline.num_pipelines = config.pipeline.num_stages = 2
  config.pipeline.num_microbatches = 4
  config.checkpoint.every_steps = config.evaluate.every_steps = 2
  config.metrics.plots = False
  return config
"""


def has_etcd():
  try:
    private_etcd.find_binary()
  except OSError:
    return False
  return True


def processes_that_name(text):
  """Returns the numbers of processes with `text` in their command line."""
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
      if text.encode() in path.read_bytes():
        found.append(int(path.parent.name))
    except OSError:
      continue  # It has ended.
  return found


@absltest.skipUnless(has_etcd(), "etcd is not installed")
class ClusterTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
    self.config = self.folder / "small.py"
    self.config.write_text(_CONFIG)

  def start(self, module, name, *arguments):
    return subprocess.Popen(
        [
            *(sys.executable, "-m", module, f"--config={self.config}"),
            *(f"--workdir={self.folder / name}", *arguments),
        ],
        cwd=_ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

  def summary(self, name):
    return json.loads((self.folder / name / "summary.json").read_text())

  def evaluations(self, name):
    lines = jsonl.read_lines(self.folder / name / "metrics.jsonl")
    return jsonl.column(lines, "loss", event="eval")

  def saved(self, name):
    """Returns the hash of each layer in the last checkpoint."""
    path = self.folder / name / "checkpoints" / "6" / "manifest.json"
    layers = json.loads(path.read_text())["layers"]
    return {layer: entry["sha256"] for layer, entry in layers.items()}

  def test_bits_of_the_run_without_a_kill(self):
    faults = self.folder / "faults.csv"
    faults.write_text(
        "step,node,at,kind\n2,0/1,6,kill\n3,1/0,reduce,kill\n4,0/0,7,kill\n"
    )
    runs = [
        self.start("launch.cluster", "killed", f"--faults={faults}"),
        self.start("launch.train", "whole"),
    ]
    for run in runs:
      said, _ = run.communicate(timeout=300)
      self.assertEqual(run.returncode, 0, msg=said)
    killed, whole = self.summary("killed"), self.summary("whole")
    self.assertEqual(killed["state_sha256"], whole["state_sha256"])
    self.assertEqual(self.evaluations("killed"), self.evaluations("whole"))
    self.assertEqual(self.saved("killed"), self.saved("whole"))
    told = [(r["victims"], r["rung"]) for r in killed["recoveries"]]
    self.assertEqual(
        told,
        [
            (["0/1"], "shadow"),
            (["1/0"], "shadow"),
            (["0/0", "0/1"], "reroute"),
        ],
    )
    for recovery in killed["recoveries"]:
      self.assertGreater(recovery["kill_to_first_instruction_secs"], 0.0)
    self.assertEqual(processes_that_name(str(self.folder)), [])

  def test_an_interrupt_leaves_nothing_behind(self):
    run = self.start("launch.cluster", "interrupted")
    logs = self.folder / "interrupted" / "logs"
    while run.poll() is None and not (logs / "n3.log").exists():
      time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=60)
    self.assertEqual(run.returncode, 130, msg=said)
    self.assertIn("all processes have ended", said)
    self.assertEqual(processes_that_name(str(self.folder)), [])
