"""The systemd unit: its command exists, and the guide sets its variables."""

import configparser
import os
import re
import subprocess

from absl.testing import parameterized

from tests.deploy import runs
from tests.launch import commands

_FILE = commands.ROOT / "docs" / "deploy" / "bamboo-agent.service"
_GUIDE = commands.ROOT / "docs" / "guides" / "deploy.md"


def read_variables():
  """Returns the variables of the guide's example of `/etc/bamboo.env`."""
  (text,) = re.findall(
      r"`/etc/bamboo.env`.*?```\n(.*?)```", _GUIDE.read_text(), re.DOTALL
  )
  return dict(line.split("=", 1) for line in text.splitlines())


class SystemdTest(runs.DeployedCase):

  def setUp(self):
    super().setUp()
    unit = configparser.ConfigParser()
    unit.optionxform = str
    unit.read(_FILE)
    self.service = unit["Service"]
    self.variables = read_variables()

  def read_command(self, name, **variables):
    """Returns the words of a command of the unit, with its variables."""
    given = self.variables | variables
    text = re.sub(r"\$\{(\w+)\}", lambda m: given[m[1]], self.service[name])
    return text.split()

  def test_the_command_exists(self):
    self.check_commands()
    program, *arguments = self.read_command("ExecStart")
    self.assertEqual(program, "/opt/bamboo-jax/.venv/bin/bamboo")
    done = subprocess.run(
        ["bamboo", *arguments],
        env=self.environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    self.assertEqual(done.returncode, 0, msg=done.stderr)
    self.assertEqual(arguments[0], "agent")
    names = {argument.partition("=")[2] for argument in arguments[1:]}
    self.assertEqual(names, {*self.variables.values()})
    self.assertEqual(self.service["EnvironmentFile"], "/etc/bamboo.env")

  @parameterized.parameters(
      (("endpoint.json",), 0),
      (("summary.json", "endpoint.json"), 0),  # Another run has begun.
      (("endpoint.json", "summary.json"), 1),  # The run is complete.
  )
  def test_it_starts_unless_the_run_is_complete(self, names, want):
    self.workdir.mkdir()
    for secs, name in enumerate(names, 1):
      (self.workdir / name).touch()
      os.utime(self.workdir / name, (secs, secs))
    command = self.read_command("ExecCondition", WORKDIR=str(self.workdir))
    self.assertEqual(subprocess.run(command).returncode, want)

  def test_how_it_ends(self):
    self.assertEqual(self.service["Restart"], "on-failure")
    self.assertEqual(self.service["KillMode"], "mixed")  # A notice.
