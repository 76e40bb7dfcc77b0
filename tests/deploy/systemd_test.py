"""The systemd unit: its command exists, and the guide sets its variables."""

import configparser
import re
import shutil

from absl.testing import absltest

from bamboo_jax.cluster import children
from tests.deploy import runs
from tests.launch import commands

_FILE = commands.ROOT / "docs" / "deploy" / "bamboo-agent.service"
_GUIDE = commands.ROOT / "docs" / "guides" / "deploy.md"


def read_variables():
  """Returns the variables of the guide's example of `/etc/bamboo.env`."""
  (text,) = re.findall(r"`/etc/bamboo.env`.*?```\n(.*?)```", _GUIDE.read_text(), re.DOTALL)
  return dict(line.split("=", 1) for line in text.splitlines())


class SystemdTest(runs.DeployedCase):

  def setUp(self):
    super().setUp()
    unit = configparser.ConfigParser()
    unit.optionxform = str
    unit.read(_FILE)
    self.unit, self.service = unit["Unit"], unit["Service"]

  def test_the_command_exists(self):
    self.check_commands()
    variables = read_variables()
    command = re.sub(r"\$\{(\w+)\}", lambda m: variables[m[1]], self.service["ExecStart"])
    program, *arguments = command.split()
    self.assertEqual(program, "/opt/bamboo-jax/.venv/bin/bamboo")
    done = self.run_program("bamboo", *arguments)
    self.assertEqual(done.returncode, 0, msg=done.stderr)
    self.assertEqual(arguments[0], "agent")
    names = {argument.partition("=")[2] for argument in arguments[1:]}
    self.assertEqual(names, {*variables.values()})
    self.assertEqual(self.service["EnvironmentFile"], "/etc/bamboo.env")

  @absltest.skipUnless(shutil.which("systemd-analyze"), "needs systemd")
  def test_verify(self):
    path = self.folder / _FILE.name
    text = _FILE.read_text().replace("/opt/bamboo-jax/.venv/bin/bamboo", "/bin/true")
    path.write_text(text)
    done = self.run_program("systemd-analyze", "verify", path)
    self.assertEqual((done.returncode, done.stderr), (0, ""))

  def test_how_it_ends(self):
    want = {
        "Restart": "on-failure",
        "RestartPreventExitStatus": "2",
        "KillMode": "mixed",  # A notice.
        "SuccessExitStatus": f"{children.LEFT}",
    }
    self.assertEqual({name: self.service[name] for name in want}, want)
    # However long the folder is away.
    self.assertEqual(self.unit["StartLimitIntervalSec"], "0")
