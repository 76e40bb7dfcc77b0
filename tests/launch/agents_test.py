"""Agents that are started one by one, as on several machines.

Loopback addresses stand for machines. Takes most of half a minute, as workers
import JAX.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest

from bamboo_jax.base import ports as ports_lib
from bamboo_jax.cluster.store import private_etcd
from tests import notice_server

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_CONFIG = """
from configs import sweep_faults

def get_config():
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 1
  config.num_steps = 200
  config.pipeline.num_pipelines = 1
  config.pipeline.num_stages = 2
  config.pipeline.num_microbatches = 2
  config.redundancy.spares = 1
  config.checkpoint.every_steps = 0
  config.metrics.plots = False
  return config
"""


def has_etcd():
  try:
    private_etcd.find_binary()
  except OSError:
    return False
  return True


@absltest.skipUnless(has_etcd(), "etcd is not installed")
class AgentsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
    (self.folder / "small.py").write_text(_CONFIG)
    self.cloud = notice_server.NoticeServer()
    self.addCleanup(self.cloud.close)
    self.etcd = private_etcd.PrivateEtcd(
        self.folder / "etcd",
        ports=(ports_lib.free_port(), ports_lib.free_port()),
    )
    self.addCleanup(self.end, self.etcd.process)
    self.etcd.wait_ready()
    self.service = f"127.0.0.1:{ports_lib.free_port()}"
    port = self.service.partition(":")[2]
    self.start("launch.coordinator", f"--port={port}", "--slots=8")

  def end(self, process):
    process.kill()
    process.wait()
    if process.stdout:
      process.stdout.close()

  def start(self, module, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=_ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    self.addCleanup(self.end, process)
    return process

  def start_agent(self, number, *arguments):
    return self.start(
        "launch.agent",
        f"--config={self.folder}/small.py",
        f"--workdir={self.folder}",
        f"--etcd=127.0.0.1:{self.etcd.port}",
        f"--service={self.service}",
        "--slots=8",
        f"--name=n{number}",
        f"--zone=z{number}",
        f"--host=127.0.0.{number + 1}",
        *arguments,
    )

  def has_stepped(self):
    log = self.folder / "metrics.jsonl"
    return log.exists() and b'"loss"' in log.read_bytes()

  def test_one_of_three_machines_is_preempted(self):
    gcp = ("--notice=gcp", f"--notice_url={self.cloud.url}")
    agents = [self.start_agent(0), self.start_agent(1, *gcp)]
    agents.append(self.start_agent(2))
    while not self.has_stepped() and all(a.poll() is None for a in agents):
      time.sleep(0.02)
    self.cloud.announced = {"gcp"}
    for agent in agents:
      said, _ = agent.communicate(timeout=120)
      self.assertEqual(agent.returncode, 0, msg=said)
    summary = json.loads((self.folder / "summary.json").read_text())
    self.assertEqual(summary["steps"], 200)
    shown = self.start(
        "launch.status", f"--etcd=127.0.0.1:{self.etcd.port}"
    ).communicate()[0]
    self.assertIn("n1 left: handed over after a notice", shown)
    self.assertIn("step=200 num_steps=200", shown)
