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
_TASK = _FILES / "skypilot_agent.yaml"
_PYTHON = commands.ROOT / ".venv-skypilot" / "bin" / "python"


class SkyPilotTest(runs.DeployedCase):

  def setUp(self):
    super().setUp()
    self.calls = self.folder / "calls"
    self.note = f'echo "${{0##*/}} $@" >>{self.calls}\n'
    for name in ("curl", "sleep"):
      self.write_program(name, "echo us-east-1a\n")
    self.write_program("pip", self.note)
    self.write_program("hostname", 'test -z "$1" && echo ip7 || echo 10.0.0.7\n')
    self.write_program("date", "echo 99\n")

  @parameterized.parameters(
      # How agents end, one after another, and the task.
      ([0], 0),
      ([143, 1, 0], 0),  # It left after a notice, but its machine was not taken.
      ([1, 2], 2),
  )
  def test_commands(self, statuses, want):
    task = yaml.safe_load(_TASK.read_text())
    ends = self.folder / "ends"
    ends.write_text("".join(f"{status}\n" for status in statuses))
    end = f"status=$(head -n 1 {ends}); sed -i 1d {ends}; test $status = 0 || exit $status\n"
    self.check_commands(f"{self.note}{end}")
    given = {k: v for k, v in task["envs"].items() if v} | {"WORKDIR": "s3://b/run"}
    script = f"set -e\n{task['setup']}\n{task['run']}"
    ran = self.run_program("bash", "-c", script, **given)
    self.assertEqual(ran.returncode, want, msg=ran.stderr)
    agent = (
        "bamboo agent --config=quickstart --workdir=s3://b/run --nodes=8 --name=ip7-99 "
        "--zone=us-east-1a --host=10.0.0.7 --notice=aws"
    )
    self.assertEqual(
        self.calls.read_text().splitlines(),
        ["pip install --constraint requirements.txt .[cuda12]", *[agent] * len(statuses)],
    )

  def run_script(self):
    """Returns how `up 2` and `down 1` end, and the commands of `sky`."""
    self.write_program("sky", f'{self.note}test "$5" != --name=bamboo-0\n')
    file = _FILES / "skypilot.sh"
    up = self.run_program(file, "up", "2", "--env", "NODES=2", WORKDIR="s3://b/run")
    down = self.run_program(file, "down", "1")
    return up, down, self.calls.read_text().splitlines()

  def test_up_and_down(self):
    up, down, calls = self.run_script()
    self.assertEqual((up.returncode, down.returncode), (0, 0))
    jobs = "sky jobs launch --yes --detach-run --name=bamboo"
    given = f"--env WORKDIR=s3://b/run --env NODES=2 {_TASK}"
    self.assertEqual(
        calls, [f"{jobs}-0 {given}", f"{jobs}-1 {given}", "sky jobs cancel --yes --name=bamboo-0"]
    )
    self.assertEqual(up.stdout, "bamboo-0: not launched\n")

  @absltest.skipUnless(_PYTHON.exists(), "needs requirements-skypilot.txt")
  def test_parser(self):  # Importing SkyPilot takes seconds.
    calls = self.run_script()[-1]
    given = {"tasks": [str(_TASK)], "commands": [call.split()[1:] for call in calls]}
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
    (agent,) = found["tasks"]
    same = {"num_nodes": 1, "infra": "aws/us-east-1", "accelerators": {"A10G": 1}}
    envs = {"WORKDIR": "s3://b/run", "CONFIG": "quickstart", "NODES": "8"}
    self.assertEqual(agent, same | {"cpus": None, "use_spot": True, "envs": envs})
    job, _, cancel = found["commands"]
    env = [["WORKDIR", "s3://b/run"], ["NODES", "2"]]
    self.assertEqual(
        job,
        {"yes": True, "detach_run": True, "name": "bamboo-0", "env": env}
        | {"entrypoint": [str(_TASK)]},
    )
    self.assertEqual(cancel, {"yes": True, "name": "bamboo-0"})
