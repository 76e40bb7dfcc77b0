"""Files for SkyPilot: commands and flags exist, and its parser takes them."""

import os
import subprocess

from absl.testing import absltest
from absl.testing import parameterized
import yaml

from tests.deploy import runs
from tests.launch import commands

try:
  import sky
except ImportError:
  sky = None

_FILES = commands.ROOT / "docs" / "deploy"
_NAMES = ("skypilot_store.yaml", "skypilot_agent.yaml")


class SkyPilotTest(runs.DeployedCase):

  def setUp(self):
    super().setUp()
    self.calls = self.folder / "calls"
    self.note = f'echo "${{0##*/}} $@" >>{self.calls}\n'
    for name in ("sudo", "mountpoint", "curl", "sleep"):
      self.write_program(name, "echo us-east-1a\n")
    self.write_program(
        "hostname", 'test -z "$1" && echo ip7 || echo 10.0.0.7\n'
    )
    self.write_program("date", "echo 99\n")

  def run_text(self, *command, **environ):
    environ = {**self.environ, **environ}
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300
    )

  @absltest.skipIf(sky is None, "needs skypilot")
  @parameterized.parameters(*_NAMES)
  def test_parser(self, name):
    task = sky.Task.from_yaml_config(
        yaml.safe_load((_FILES / name).read_text()), {"NFS": "10.0.0.9:/x"}
    )
    self.assertEqual(task.num_nodes, 1)
    (resources,) = task.resources
    self.assertEqual(resources.use_spot, name == "skypilot_agent.yaml")

  @parameterized.parameters(
      ("skypilot_store.yaml", "store --workdir={} --host=10.0.0.7"),
      (
          "skypilot_agent.yaml",
          "agent --config=quickstart --workdir={} --nodes=8 --name=ip7-99 "
          "--zone=us-east-1a --host=10.0.0.7 --notice=aws",
      ),
  )
  def test_commands(self, name, want):
    task = yaml.safe_load((_FILES / name).read_text())
    (self.folder / "run").mkdir()
    (self.folder / "run" / "endpoint.json").touch()
    os.utime(self.folder / "run" / "endpoint.json", (1, 1))
    done = f"{self.note}touch {self.folder}/run/summary.json\n"
    self.check_commands(done)
    given = {k: v or "10.0.0.9:/x" for k, v in task["envs"].items()}
    script = task["run"].replace("/shared", str(self.folder))
    ran = self.run_text("bash", "-c", script, **given)
    self.assertEqual(ran.returncode, 0, msg=ran.stderr)
    self.assertEqual(
        self.calls.read_text(), f"bamboo {want.format(self.workdir)}\n"
    )

  def test_up_and_down(self):
    self.write_program("sky", f'{self.note}test "$5" != --name=bamboo-0\n')
    file, nfs = _FILES / "skypilot.sh", "10.0.0.9:/x"
    up = self.run_text(file, "up", "2", "--env", "NODES=2", NFS=nfs)
    down = self.run_text(file, "down", "1")
    self.assertEqual((up.returncode, down.returncode), (0, 0))
    jobs = "sky jobs launch --yes --detach-run --name=bamboo"
    given = f"--env NFS={nfs} --env NODES=2 {_FILES}/skypilot_agent.yaml"
    self.assertEqual(
        self.calls.read_text().splitlines(),
        [
            "sky launch --yes --detach-run --cluster=bamboo-store "
            f"--env NFS={nfs} {_FILES}/skypilot_store.yaml",
            f"{jobs}-0 {given}",
            f"{jobs}-1 {given}",
            "sky jobs cancel --yes --name=bamboo-0",
            "sky down --yes bamboo-store",
        ],
    )
    self.assertEqual(up.stdout, "bamboo-0: not launched\n")
