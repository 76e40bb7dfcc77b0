"""A cluster that outlives the slots, and the process, of its coordinator.

Takes most of a minute: real processes. What a run without failures comes to is
computed meanwhile.
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

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_CONFIG = """
from configs import sweep_faults

def get_config():
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 1
  config.num_steps = 40
  config.pipeline.num_pipelines = config.pipeline.num_stages = 2
  config.pipeline.num_microbatches = 4
  config.checkpoint.every_steps = 0
  config.metrics.plots = False
  return config
"""
_FAULTS = """step,node,at,kind
2,0/1,6,kill
3,,,join
30,,,join
"""


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


def has_etcd():
  try:
    private_etcd.find_binary()
  except OSError:
    return False
  return True


@absltest.skipUnless(has_etcd(), "etcd is not installed")
class ErasTest(absltest.TestCase):

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

  def test_bits_of_the_run_without_failures(self):
    faults = self.folder / "faults.csv"
    faults.write_text(_FAULTS)
    run = self.start(
        "launch.cluster", "moved", f"--faults={faults}", "--slots=5"
    )
    whole = self.start("launch.train", "whole")
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
    for process in (run, whole):
      said, _ = process.communicate(timeout=600)
      self.assertEqual(process.returncode, 0, msg=said)
    summaries = [self.summary(name) for name in ("moved", "whole")]
    self.assertEqual(*(s["state_sha256"] for s in summaries))
    self.assertEqual(
        [r["rung"] for r in summaries[0]["recoveries"]], ["shadow", "shadow"]
    )
    logs = (self.folder / "moved" / "logs").glob("n*.log")
    said = "".join(log.read_text() for log in logs)
    self.assertEqual(said.count("Moved to era 1 "), 3)
    self.assertIn("Moved to era 2 ", said)
    self.assertNotIn("still in use", said)  # See `coordination.reconnect`.
