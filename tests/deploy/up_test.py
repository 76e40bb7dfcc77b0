"""`bamboo up` and sshd, on addresses of the loopback interface.

The whole run takes most of a minute, as five workers import JAX.
"""

import contextlib
import io
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from absl.testing import absltest, parameterized

from bamboo_jax.base import ports
from bamboo_jax.local_cluster import hosts
from tests import samples
from tests.deploy import runs
from tests.launch import commands

_SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PidFile none
"""
_OPTIONS = (
    *("BatchMode=yes", "StrictHostKeyChecking=no", "LogLevel=ERROR"),
    "UserKnownHostsFile=/dev/null",
)

_SSH = """
test "$1" = alpha || { echo "ssh: no route to $1"; exit 255; }
export SSH_CONNECTION="10.0.0.1 4000 10.0.0.2 22"
exec sh -c "$2"
"""
# It says when it is ready by a signal to the test.
_AGENT = """
trap 'echo saves; trap "echo ends; exit 7" TERM' TERM
for argument; do echo "$argument"; done
kill -s ALRM $READY
while true; do sleep 0.05; done
"""


@samples.only_all
@absltest.skipUnless(_SSHD and os.geteuid() == 0, "needs root, and sshd")
@commands.needs_etcd
class UpTest(runs.DeployedCase):

  def setUp(self):
    super().setUp()
    key, port = self.folder / "key", ports.free_port()
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", key], check=True)
    config = self.folder / "sshd_config"
    config.write_text(_CONFIG.format(folder=self.folder, port=port))
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    sshd = subprocess.Popen([_SSHD, "-D", "-f", config])
    self.addCleanup(sshd.wait)
    self.addCleanup(sshd.terminate)
    options = "".join(f" -o{option}" for option in _OPTIONS)
    self.ssh = f"ssh -i {key} -p {port}{options}"
    self.wait_for(lambda: self.can_connect(), "sshd")
    self.hosts = self.folder / "hosts.txt"
    self.hosts.write_text("".join(f"127.0.0.{n} z{n}\n" for n in (1, 2, 9)))

  def can_connect(self):
    command = [*self.ssh.split(), "127.0.0.1", "true"]
    return not subprocess.run(command, capture_output=True).returncode

  def start_up(self):
    bamboo = self.folder / "bin" / "bamboo"
    given = (f"--ssh={self.ssh}", f"--bamboo={bamboo}", "--host=127.0.0.1")
    return self.start("up", str(self.hosts), "--nodes=2", *given)

  def find_agents(self, name):
    texts = ("launch.agent", f"--name={name}", str(self.workdir))
    found = [{*commands.processes_that_name(text)} for text in texts]
    return set.intersection(*found)

  def has_event(self, name):
    metrics = self.workdir / "metrics.jsonl"
    return f'"event": "{name}"' in metrics.read_text()

  def test_a_run_that_is_stopped_and_goes_on(self):
    up = self.start_up()
    self.wait_member("n1")
    up.send_signal(signal.SIGINT)
    said, _ = up.communicate(timeout=60)
    self.assertEqual(up.returncode, 130, msg=said)
    self.assertEqual(said.count("127.0.0.9: "), 1)
    self.assertIn("127.0.0.9: ssh: connect to host 127.0.0.9", said)
    self.assertEqual(commands.processes_that_name(str(self.workdir)), [])
    self.assertTrue(self.has_event("saving"))
    up = self.start_up()
    self.wait_for(lambda: self.find_agents("n1"), "agent")
    self.wait_member("n1")
    (agent,) = self.find_agents("n1")
    os.kill(agent, signal.SIGKILL)
    self.wait_member("n1-1")
    self.release()
    said, _ = up.communicate(timeout=120)
    self.assertEqual(up.returncode, 0, msg=said)
    self.check_state()
    self.assertIn(f"state_sha256={self.summary()['state_sha256']}", said)
    last = f"\nstep={self.summary()['steps']} "
    self.assertEqual(said.count(last), 1, msg=said)  # Not once for each host.


class CommandsTest(runs.DeployedCase):
  """A program that runs commands here stands for ssh."""

  @commands.needs_etcd
  def test_commands(self):
    calls = self.folder / "calls"
    log = self.workdir / "metrics.jsonl"
    self.check_commands(f'echo "$@" >>{calls}\n' f"""echo '{{"step": 1, "loss": 2.0}}' >>{log}\n""")
    self.write_program("ssh", _SSH.replace("alpha", "127.0.0.7"))
    file = self.folder / "hosts.txt"
    file.write_text("127.0.0.7 z\n")
    up = self.start(
        *("up", str(file), "--nodes=3", "--host=127.0.0.1"),
        f"--ssh={self.folder / 'bin' / 'ssh'}",
        f"--bamboo={self.folder / 'bin' / 'bamboo'}",
    )
    said, _ = up.communicate(timeout=100)
    self.assertIn("\nerror: All agents have ended, and the run is not complete.", said)
    self.assertIn("\nstep=1 loss=2.0000\n", said)
    copy = self.workdir / "config.py"
    self.assertEqual(
        calls.read_text(),
        f"agent --noprogress --workdir={self.workdir} --nodes=3 "
        f"--config={copy} --config.name={self.config.stem} --name=n0 --zone=z --host=10.0.0.2\n",
    )
    self.assertEqual(copy.read_text(), self.config.read_text())


class HostsTest(parameterized.TestCase):

  def test_parse(self):
    text = "# Two.\nalpha us-east-1a\n\nubuntu@10.0.0.8  # No zone.\n"
    alpha = hosts.Host("alpha", "us-east-1a")
    other = hosts.Host("ubuntu@10.0.0.8", "a")
    self.assertEqual(hosts.parse(text), [alpha, other])

  @parameterized.parameters(
      ("# Nobody.\n", "There must be a host."),
      ("a\nb c d\n", "Line 2 must be `NAME .ZONE.`, got 'b c d'."),
      ("-oProxyCommand=x\n", "Line 1 must be"),
      ("a\nb\na z\n", "Line 3 names a a second time."),
  )
  def test_mistakes(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      hosts.parse(text)

  def run_fleet(self, *names, agent=("true",)):
    """Returns the lines of a fleet over a program that stands for ssh."""
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (folder / "ssh").write_text(_SSH)
    fleet = hosts.Fleet(
        [hosts.Host(name, "z") for name in names],
        ssh=["sh", str(folder / "ssh")],
        agent=agent,
        leave_secs=1,
    )
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      try:
        fleet.run()
      except KeyboardInterrupt:
        pass
    return said.getvalue().splitlines()

  def test_an_agent_is_ended(self):
    def interrupt(*_):
      raise KeyboardInterrupt

    self.addCleanup(signal.signal, signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, interrupt)
    script = _AGENT.replace("$READY", str(os.getpid()))
    said = self.run_fleet("alpha", agent=["sh", "-c", script, "sh", "--a=1 2"])
    want = ["--a=1 2", "--name=n0", "--zone=z", "--host=10.0.0.2"]
    self.assertEqual(said, [f"alpha: {l}" for l in (*want, "saves", "ends")])

  def test_machines_that_cannot_be_reached(self):
    said = self.run_fleet("one", "two")
    want = ["one: ssh: no route to one", "two: ssh: no route to two"]
    self.assertCountEqual(said, want)
