"""Three workers are killed and replaced; takes about a minute of two cores.

What a run without failures comes to is computed in this process meanwhile.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest

from tests.launch import cluster_test as cluster

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_CONFIG = """
from configs import sweep_faults

def get_config():
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 1
  config.num_steps = 13
  config.pipeline.num_pipelines = config.pipeline.num_stages = 2
  config.pipeline.num_microbatches = 2
  config.checkpoint.every_steps = 0
  config.metrics.plots = False
  return config
"""


@absltest.skipUnless(cluster.has_etcd(), "etcd is not installed")
class KillsTest(absltest.TestCase):

  def test_random_kills(self):
    folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    (folder / "small.py").write_text(_CONFIG)
    commands = {
        "cluster": ["launch.cluster", "--random_kills=3", "--zones=a,b"],
        "train": ["launch.train"],
    }
    runs = {
        name: subprocess.Popen(
            [
                *(sys.executable, "-m", *command),
                f"--config={folder / 'small.py'}",
                f"--workdir={folder / name}",
            ],
            cwd=_ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, command in commands.items()
    }
    found = {}
    for name, run in runs.items():
      said, _ = run.communicate(timeout=600)
      self.assertEqual(run.returncode, 0, msg=said)
      found[name] = json.loads((folder / name / "summary.json").read_text())
    for key in ("state_sha256", "samples_seen"):
      self.assertEqual(found["cluster"][key], found["train"][key])
    recoveries = found["cluster"]["recoveries"]
    self.assertEqual([r["rung"] for r in recoveries], ["shadow"] * 3)
    self.assertEqual(cluster.processes_that_name(str(folder)), [])
