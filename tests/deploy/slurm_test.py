"""A run under Slurm: its daemons, with several nodes on this machine.

With the daemons it takes most of a minute, as six workers import JAX. Without
them programs that only write down their arguments stand for those of Slurm.
"""

import os
import shutil
import subprocess

from absl.testing import absltest, parameterized

from bamboo_jax.base import ports
from tests import samples
from tests.deploy import runs
from tests.launch import commands

_FILES = commands.ROOT / "docs" / "deploy"
_DAEMONS = ("slurmctld", "slurmd", "munged", "sbatch")

_SRUN = """
test "$1" = --ntasks=1 && shift
case $1 in
  --cpus-per-task=*) echo "cores=${1#*=}" >&2; shift;;
esac
exec "$@"
"""
_IP = """
test "$*" = "-4 -oneline address show dev ib0" || exit 0
echo "5: ib0    inet 10.9.0.3/16 brd 10.9.255.255 scope global ib0"
echo "5: ib0    inet 10.9.0.4/16 brd 10.9.255.255 scope global ib0"
"""


def has_slurm():
  return os.geteuid() == 0 and all(map(shutil.which, _DAEMONS))


@samples.only_all
@absltest.skipUnless(has_slurm(), "needs root, and Slurm (see docs/deploy)")
class SlurmTest(runs.DeployedCase):

  def setUp(self):
    super().setUp()
    port = ports.free_port()
    slurm = subprocess.Popen(
        [_FILES / "slurm_one_machine.sh", self.folder / "slurm", "5"],
        env={**self.environ, "FIRST_PORT": str(port)},
        stdout=subprocess.PIPE,
        text=True,
    )
    self.addCleanup(slurm.communicate)
    self.addCleanup(slurm.terminate)
    ready = slurm.stdout.readline().split()
    self.assertEqual(ready[:2], ["ready:", "export"])
    name, _, value = ready[2].partition("=")
    self.environ |= {
        name: value,
        "WORKDIR": str(self.workdir),
        "CONFIG": str(self.config),
        "NODES": "3",
        "INTERFACE": "lo",
    }

  def call(self, *command):
    """Returns the output of a command, which must end well."""
    return subprocess.run(
        command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=True
    ).stdout

  def test_tasks_are_killed_and_requeued(self):
    nodes = ("--array=0-2", "--partition=preemptible", "--gres=gpu:1")
    file = _FILES / "slurm.sh"
    job = self.call("sbatch", "--parsable", "--partition=cpu", file, *nodes)
    log = self.folder / f"slurm-{job.strip()}.out"
    self.wait_member("n2-0")
    array = log.read_text().rpartition("array of nodes: ")[2].strip()
    self.call("scancel", "--signal=KILL", f"{array}_0.0")
    self.wait_member("n0-1")
    drained = self.members()["n1-0"].zone
    update = ("update", f"nodename={drained}", "state=drain", "reason=test")
    self.call("scontrol", *update)
    self.call("scontrol", "requeue", f"{array}_1")
    self.assertNotEqual(self.wait_member("n1-1").zone, drained)
    self.release()
    self.wait_for(lambda: not self.call("squeue", "--noheader"), "end")
    state = self.call("scontrol", "show", "job", job.strip())
    self.assertIn("JobState=COMPLETED", state)
    self.check_state()


class FileTest(runs.DeployedCase):
  """Programs that note their arguments stand for those of Slurm."""

  TASK = {
      "SLURM_ARRAY_JOB_ID": "7",
      "SLURM_ARRAY_TASK_ID": "3",
      "SLURM_RESTART_COUNT": "2",
      "SLURMD_NODENAME": "s1",
  }

  def setUp(self):
    super().setUp()
    self.calls = self.folder / "calls"
    note = f'echo "${{0##*/}} $@" >>{self.calls}\n'
    self.write_program("scancel", note)
    self.write_program("scontrol", note)
    self.write_program("squeue", "echo 7_0\n")
    self.write_program("sbatch", f'{note}test -z "$QUOTA" && echo 7\n')
    self.write_program("hostname", "echo 10.0.0.7 10.0.0.8\n")
    self.write_program("srun", _SRUN)
    self.write_program("ip", _IP)
    self.check_commands(f'{note}test "$1" != store || touch "$WORKDIR/$MADE"\n')
    self.workdir.mkdir()
    self.environ |= {"WORKDIR": str(self.workdir), "CONFIG": "quickstart", "MADE": "endpoint.json"}

  def run_file(self, *arguments, **environ):
    """Runs the file; returns its exit status, and what it called."""
    done = subprocess.run(
        [_FILES / "slurm.sh", *arguments],
        env={**self.environ, **environ},
        cwd=self.folder,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=300,
    )
    calls = self.calls.read_text().splitlines()
    return done.returncode, calls, done.stderr

  @parameterized.parameters(
      ({}, "", "10.0.0.7"),
      ({"SLURM_CPUS_PER_TASK": "8"}, "cores=8\n", "10.0.0.7"),
      ({"INTERFACE": "ib0"}, "", "10.9.0.3"),
      # The login node's address is not that of a task.
      ({"INTERFACE": "ib0", "ADDRESS": "10.0.0.1"}, "", "10.9.0.3"),
  )
  def test_step_and_address(self, environ, cores, address):
    _, (agent, _), said = self.run_file(**self.TASK, **environ)
    self.assertEqual(said, cores)
    self.assertEndsWith(agent, f" --host={address}")

  def test_interface_without_address(self):
    self.calls.touch()
    status, calls, said = self.run_file(**self.TASK, INTERFACE="ib1")
    self.assertEqual((status, calls), (1, []))
    self.assertEndsWith(said, "INTERFACE=ib1 has no address of IPv4 on this machine\n")

  def test_the_store_is_not_requeued(self):
    text = (_FILES / "slurm.sh").read_text()
    self.assertIn("\n#SBATCH --no-requeue\n", text)

  def test_node(self):
    status, (agent, requeue), said = self.run_file(**self.TASK)
    self.assertEqual(
        agent,
        f"bamboo agent --config=quickstart --workdir={self.workdir} --nodes=8 "
        "--name=n3-2 --zone=s1 --host=10.0.0.7",
    )
    self.assertEqual(requeue, "scontrol requeue 7_3")
    self.assertEqual(status, 0, msg=said)

  @parameterized.parameters(
      # Exit status of the agent, the newest file, and that of the node.
      ("2", "endpoint.json", 2, False),  # A mistake in the command.
      ("2", "metrics.jsonl", 2, False),  # An error that all nodes meet.
      ("1", "metrics.jsonl", 0, True),  # It was removed from the run.
      ("137", "endpoint.json", 0, True),  # It was killed.
      ("0", "summary.json", 0, False),  # The run is complete.
      ("1", "summary.json", 0, True),  # Another run was.
  )
  def test_end_of_node(self, ended, newest, want, is_requeued):
    for name in ("metrics.jsonl", "summary.json", "endpoint.json", newest):
      (self.workdir / name).touch()
      secs = {newest: 3, "endpoint.json": 2}.get(name, 1)
      os.utime(self.workdir / name, (secs, secs))
    self.write_program("bamboo", f"exit {ended}\n")
    self.calls.touch()
    status, calls, said = self.run_file(**self.TASK)
    self.assertEqual(status, want, msg=said)
    self.assertEqual(calls, ["scontrol requeue 7_3"] * is_requeued)

  def test_store(self):
    file = _FILES / "slurm.sh"
    status, calls, said = self.run_file("--array=0-8", SLURM_JOB_ID="6")
    self.assertEqual(status, 0, msg=said)
    self.assertEqual(
        calls,
        [
            f"bamboo store --workdir={self.workdir} --host=10.0.0.7 --port=0",
            "sbatch --parsable --job-name=bamboo-node --requeue "
            f"--signal=TERM@60 --output={self.workdir}/logs/slurm-%A_%a.out "
            f"--array=0-8 {file}",
            "scancel 7",
        ],
    )

  def test_all_nodes_have_ended(self):
    """None was requeued, so each has ended with status 2."""
    self.write_program("squeue", "true\n")
    self.check_commands('test "$1" != store || { touch "$WORKDIR/$MADE"; exec sleep 60; }\n')
    status, _, _ = self.run_file("--array=0-8", SLURM_JOB_ID="6")
    self.assertEqual(status, 2)

  def test_a_full_queue(self):
    status, calls, _ = self.run_file("--array=0-8", QUOTA="exhausted")
    self.assertEqual(status, 1)
    self.assertLen(calls, 2)  # There is nothing to cancel.

  def test_no_workdir(self):
    self.calls.touch()
    status, calls, said = self.run_file(WORKDIR="")
    self.assertEqual((status, calls), (1, []))
    self.assertEndsWith(said, "WORKDIR: must name a folder that all nodes share\n")
