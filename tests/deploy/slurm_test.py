"""A run under Slurm: its daemons, with several nodes on this machine.

With the daemons it takes most of a minute, as six workers import JAX. Without
them programs that only write down their arguments stand for those of Slurm.
"""

import json
import os
import shutil
import subprocess

from absl.testing import absltest, parameterized

from bamboo_jax.cluster import judge, records as records_lib
from bamboo_jax.net import addresses, identity as identity_lib
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
  """Steps are slow until the test releases the run: time for nodes to be replaced."""

  CHANGES = {
      "num_steps": 80,
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "checkpoint.every_steps": 25,
      "redundancy.spares": 1,
  }
  HELD_FROM = 1

  def setUp(self):
    super().setUp()
    port = addresses.free_port()
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
    done = self.run_program(*command)
    self.assertEqual(done.returncode, 0, msg=done.stderr)
    return done.stdout

  def members(self):
    """Returns the members by name; none before the first step."""
    metrics = self.workdir / "metrics.jsonl"
    if not (metrics.exists() and b'"loss"' in metrics.read_bytes()):
      return {}
    key = identity_lib.find_entry_key(identity_lib.read_secret(str(self.workdir / "secret")))
    view = judge.newest_view(records_lib.Records(self.workdir, key))
    return {m.name: m for m in view.members}

  def wait_member(self, name):
    """Returns the member of that name once it has joined."""
    return self.wait_for(lambda: self.members().get(name), f"member {name}")

  def test_tasks_are_killed_and_requeued(self):
    nodes = ("--array=0-2", "--partition=preemptible", "--gres=gpu:1")
    array = self.call("sbatch", "--parsable", *nodes, _FILES / "slurm.sh").strip()
    self.wait_member("n2-0")
    self.call("scancel", "--signal=KILL", f"{array}_0.0")
    self.wait_member("n0-1")
    drained = self.members()["n1-0"].zone
    update = ("update", f"nodename={drained}", "state=drain", "reason=test")
    self.call("scontrol", *update)
    self.call("scontrol", "requeue", f"{array}_1")
    self.assertNotEqual(self.wait_member("n1-1").zone, drained)
    self.release()
    self.wait_for(lambda: not self.call("squeue", "--noheader"), "end")
    state = self.call("scontrol", "show", "job", f"{array}_2")
    self.assertIn("JobState=COMPLETED", state)
    self.finish(self.start("train", workdir="whole"))
    found = json.loads((self.workdir / "summary.json").read_text())
    self.assertEqual(found["state_sha256"], self.summary("whole")["state_sha256"])


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
    self.write_program("hostname", "echo 10.0.0.7 10.0.0.8\n")
    self.write_program("srun", _SRUN)
    self.write_program("ip", _IP)
    self.check_commands(note)
    self.environ |= {"WORKDIR": str(self.workdir), "CONFIG": "quickstart"} | self.TASK

  def run_file(self, **environ):
    """Runs the file; returns its exit status, and what it called."""
    self.calls.touch()
    done = self.run_program(_FILES / "slurm.sh", **environ)
    return done.returncode, self.calls.read_text().splitlines(), done.stderr

  @parameterized.parameters(
      ({}, "", "10.0.0.7"),
      ({"SLURM_CPUS_PER_TASK": "8"}, "cores=8\n", "10.0.0.7"),
      ({"INTERFACE": "ib0"}, "", "10.9.0.3"),
      # The login node's address is not that of a task.
      ({"INTERFACE": "ib0", "ADDRESS": "10.0.0.1"}, "", "10.9.0.3"),
  )
  def test_step_and_address(self, environ, cores, address):
    _, (agent, _), said = self.run_file(**environ)
    self.assertEqual(said, cores)
    self.assertEqual(
        agent,
        f"bamboo agent --config=quickstart --workdir={self.workdir} --nodes=8 "
        f"--name=n3-2 --zone=s1 --host={address}",
    )

  @parameterized.parameters(
      # Exit status of the agent, that of the node, and what else is done.
      (2, 2, []),  # A mistake in the command, or an error that all nodes meet.
      (1, 0, ["scontrol requeue 7_3"]),  # It was removed from the run.
      (137, 0, ["scontrol requeue 7_3"]),  # It was killed.
      (143, 0, ["scontrol requeue 7_3"]),  # It left after a notice.
      (0, 0, ["scancel --state=PENDING 7"]),  # The run is complete.
  )
  def test_end_of_node(self, ended, want, calls):
    self.write_program("bamboo", f"exit {ended}\n")
    status, found, said = self.run_file()
    self.assertEqual((status, found), (want, calls), msg=said)

  @parameterized.parameters(
      ("WORKDIR", "", "WORKDIR: must name a folder that all nodes share, or s3://BUCKET/RUN"),
      ("SLURM_ARRAY_TASK_ID", "", "SLURM_ARRAY_TASK_ID: must be submitted with --array"),
      ("INTERFACE", "ib1", "INTERFACE=ib1 has no address of IPv4 on this machine"),
  )
  def test_refuses(self, name, value, message):
    status, calls, said = self.run_file(**{name: value})
    self.assertEqual((status, calls), (1, []))
    self.assertEndsWith(said, f"{message}\n")
