"""A cluster in which somebody else kills; takes about a minute.

First etcd, the folder of logs and a node that joins, then a worker. A node of
another environment is refused.
"""

import os
import signal
import time
from unittest import mock

from tests.launch import commands

_DEADLINE_SECS = 120


@commands.needs_etcd
class ClusterByHandTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 60,
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "evaluate.every_steps": 20,
      "evaluate.num_microbatches": 1,
  }
  HELD_FROM = 10
  HELD_SECS = 60.0  # Commands take seconds on a crowded machine.

  def find(self, *texts):
    """Returns the process of the run that names these; waits for it."""
    texts = (str(self.folder / "run"), *texts)
    end_secs = time.monotonic() + _DEADLINE_SECS
    while time.monotonic() < end_secs:
      found = [{*commands.processes_that_name(text)} for text in texts]
      if len(pids := set.intersection(*found)) == 1:
        return pids.pop()
    self.fail(f"There is no process of {texts}, or more than one.")

  def test_joins_that_fail_and_a_worker_that_is_killed(self):
    workdir, said = self.folder / "run", []
    run = self.start(*("cluster", "--config.redundancy.spares=1"), self.write_faults("11,,,join"))

    def hear(begin):
      """Reads up to a line that begins so."""
      end_secs = time.monotonic() + _DEADLINE_SECS
      for line in run.stdout:
        said.append(line.strip())
        self.assertLess(time.monotonic(), end_secs)
        if line.startswith(begin):
          return
      self.fail(said)

    hear("step=10 ")
    os.kill(self.find(f"--data-dir={workdir}"), signal.SIGKILL)
    logs = (workdir / "logs").rename(workdir / "logs.away")
    hear("n3 starts, to join")
    os.kill(self.find("launch.agent\0", "--name=n3\0"), signal.SIGKILL)
    hear("n3 could not join; another one starts in 1 s")
    hear("step=11 ")
    for path in logs.iterdir():
      path.rename(workdir / "logs" / path.name)
    with mock.patch.dict(os.environ, {"JAX_THREEFRY_PARTITIONABLE": "0"}):
      refused = commands.fork(
          *("-m", "launch.agent", "--name=n8", "--nodes=3", f"--workdir={workdir}"),
          *(f"--config={self.config}", "--config.redundancy.spares=1"),
      )
    self.assertEqual(refused.returncode, 2, msg=refused.stderr)
    self.assertIn(
        'environment.JAX_THREEFRY_PARTITIONABLE is absent there and "0" here.', refused.stderr
    )
    status = next(l for l in said if l.startswith("status: bamboo "))
    _, _, command, *arguments = status.split()
    ask = ("-m", f"launch.{command}", *arguments)
    shown = commands.run(*ask)
    self.assertIn("stage 0/1: n1 (a)", shown.stdout, msg=shown.stderr)
    pid = self.find("launch.worker --name=n1 --workdir=")
    kill = ("-m", "launch.kill", f"--workdir={workdir}")
    self.assertIn(
        "error: Unknown node 'n7'; did you mean 'n", commands.run(*kill, "n1", "n7").stderr
    )
    killed = commands.run(*kill, "n1")
    self.release()
    self.assertEqual(killed.stdout, f"n1: worker {pid} was killed\n")
    rest, _ = run.communicate(timeout=_DEADLINE_SECS)
    said += rest.splitlines()
    self.assertEqual(run.returncode, 0, msg=said)
    (recovery,) = self.summary()["recoveries"]
    self.assertEqual(recovery["names"], ["n1"])
    for name in ("detect_secs", "kill_to_step_end_secs"):
      self.assertIsNone(recovery[name])
    self.assertIsNone(recovery["kill_to_first_instruction_secs"])
    self.assertBetween(recovery["silence_to_view_secs"], 0.0, 10.0)
    step = recovery["step"]
    self.assertIn(f"recovery step={step} victims=0/1 rung=shadow view=3", said)
    (line,) = (l for l in said if l.startswith(f"step={step} "))
    self.assertIn(" view=3", line)  # It has the number of its step.
    before = next(l for l in said if l.startswith(f"step={step - 1} "))
    self.assertIn(" view=2", before)
    self.assertRegex(  # Its log, which has the reason, was removed.
        "\n".join(said),
        r"Node n1: its worker was killed by SIGKILL\. "
        r"3 of 4 nodes are left; agent: pid \d+, "
        rf"log {workdir}/logs/n1\.agent\.log; "
        rf"worker: pid {pid}, log {workdir}/logs/n1\.log",
    )
    self.assertRegex(
        "\n".join(said),
        rf"recovered in step {step}: n1 \(stage 0/1\) died; its shadow n0 took "
        r"over \(noticed after: unknown, not heard for \d\.\d\d s, agreed in "
        r"\d\.\d\d s, \w+ (in \d\.\d\d s|redone), pause \d+\.\d\d s\)",
    )
    self.assertTrue(any(l.startswith("eval_step=60 eval_loss=") for l in said))
    over = commands.run(*ask)
    self.assertEqual(over.returncode, 2)
    self.assertIn(f"The run in {workdir} has ended: see", over.stderr)
