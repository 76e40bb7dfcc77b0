"""Files for SkyPilot: commands and flags exist, and its parser takes them."""

import json
import os
import pathlib
import subprocess

from absl.testing import absltest, parameterized
import yaml

from tests.deploy import runs
from tests.launch import commands

_FILES = commands.ROOT / "docs" / "deploy"
_NAMES = ("skypilot_store.yaml", "skypilot_agent.yaml")
_PYTHON = commands.ROOT / ".venv-skypilot" / "bin" / "python"


class SkyPilotTest(runs.DeployedCase):

  def setUp(self):
    super().setUp()
    self.calls = self.folder / "calls"
    self.note = f'echo "${{0##*/}} $@" >>{self.calls}\n'
    for name in ("curl", "sleep"):
      self.write_program(name, "echo us-east-1a\n")
    for name in ("sudo", "pip"):
      self.write_program(name, self.note)
    self.write_program("mountpoint", "exit 1\n")
    self.write_program("hostname", 'test -z "$1" && echo ip7 || echo 10.0.0.7\n')
    self.write_program("date", "echo 99\n")

  def run_text(self, *command, **environ):
    environ = {**self.environ, **environ}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)

  @parameterized.parameters(
      ("skypilot_store.yaml", ".[cluster]", "store --workdir={} --host=10.0.0.7"),
      (
          "skypilot_agent.yaml",
          ".[cluster,cuda12]",
          "agent --config=quickstart --workdir={} --nodes=8 --name=ip7-99 "
          "--zone=us-east-1a --host=10.0.0.7 --notice=aws",
      ),
  )
  def test_commands(self, name, package, want):
    task = yaml.safe_load((_FILES / name).read_text())
    (self.folder / "run").mkdir()
    (self.folder / "run" / "endpoint.json").touch()
    os.utime(self.folder / "run" / "endpoint.json", (1, 1))
    done = f"{self.note}touch {self.folder}/run/summary.json\n"
    self.check_commands(done)
    given = {"BEGAN": "9"} | {k: v for k, v in task["envs"].items() if v}
    given["NFS"] = "10.0.0.9:/x"
    # Of an earlier run: the loop begins all the same.
    (self.folder / "run" / "summary.json").touch()
    os.utime(self.folder / "run" / "summary.json", (8, 8))
    script = f"set -e\n{task['setup']}\n{task['run']}"
    script = script.replace("/shared", str(self.folder))
    ran = self.run_text("bash", "-c", script, **given)
    self.assertEqual(ran.returncode, 0, msg=ran.stderr)
    options = "-o actimeo=1,lookupcache=positive"
    self.assertEqual(
        self.calls.read_text().splitlines(),
        [
            "sudo apt-get install --yes nfs-common",
            f"pip install --constraint requirements.txt {package}",
            f"sudo mkdir -p {self.folder}",
            f"sudo mount -t nfs4 {options} 10.0.0.9:/x {self.folder}",
            f"bamboo {want.format(self.workdir)}",
        ],
    )

  def test_resources(self):
    tasks = [yaml.safe_load((_FILES / name).read_text()) for name in _NAMES]
    same = {"infra": "aws/us-east-1"}
    store, agent = (task["resources"] for task in tasks)
    self.assertEqual(store, same | {"cpus": "4+", "use_spot": False})
    self.assertEqual(agent, same | {"accelerators": "A10G:1", "use_spot": True})

  def run_script(self):
    """Returns how `up 2` and `down 1` end, and the commands of `sky`."""
    self.write_program("sky", f'{self.note}test "$5" != --name=bamboo-0\n')
    file = _FILES / "skypilot.sh"
    up = self.run_text(file, "up", "2", "--env", "NODES=2", NFS="10.0.0.9:/x")
    down = self.run_text(file, "down", "1")
    return up, down, self.calls.read_text().splitlines()

  def test_up_and_down(self):
    up, down, calls = self.run_script()
    self.assertEqual((up.returncode, down.returncode), (0, 0))
    nfs = "10.0.0.9:/x"
    jobs = "sky jobs launch --yes --detach-run --name=bamboo"
    given = f"--env NFS={nfs} --env BEGAN=99 --env NODES=2 " f"{_FILES}/skypilot_agent.yaml"
    self.assertEqual(
        calls,
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

  @absltest.skipUnless(_PYTHON.exists(), "needs requirements-skypilot.txt")
  def test_parser(self):  # Importing SkyPilot takes seconds.
    calls = self.run_script()[-1]
    given = {
        "tasks": [str(_FILES / name) for name in _NAMES],
        "commands": [call.split()[1:] for call in calls],
    }
    done = subprocess.run(
        [_PYTHON, pathlib.Path(__file__).with_name("skypilot_parser.py")],
        env={**os.environ, "HOME": str(self.folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=300,
    )
    self.assertEqual(done.returncode, 0, msg=done.stderr)
    found = json.loads(done.stdout)
    store, agent = found["tasks"]
    nfs = {"NFS": "a:/b"}
    same = {"num_nodes": 1, "infra": "aws/us-east-1"}
    own = {"accelerators": None, "cpus": "4+", "use_spot": False, "envs": nfs}
    self.assertEqual(store, same | own)
    envs = nfs | {"CONFIG": "quickstart", "NODES": "8"}
    gpu = {"A10G": 1}
    own = {"accelerators": gpu, "cpus": None, "use_spot": True, "envs": envs}
    self.assertEqual(agent, same | own)
    launch, job, _, cancel, down = found["commands"]
    quiet = {"yes": True, "detach_run": True}
    env = ["NFS", "10.0.0.9:/x"]
    self.assertEqual(
        launch,
        quiet
        | {"cluster": "bamboo-store", "env": [env]}
        | {"entrypoint": [str(_FILES / "skypilot_store.yaml")]},
    )
    self.assertEqual(
        job,
        quiet
        | {"name": "bamboo-0", "env": [env, ["BEGAN", "99"], ["NODES", "2"]]}
        | {"entrypoint": [str(_FILES / "skypilot_agent.yaml")]},
    )
    self.assertEqual(cancel, {"yes": True, "name": "bamboo-0"})
    self.assertEqual(down, {"yes": True, "clusters": ["bamboo-store"]})
