"""What is measured is the run that was started."""

import signal
import sys
from unittest import mock

from bamboo_jax.local_cluster import trial
from tests import folders


class TrialTest(folders.FolderCase):

  def test_a_run_of_before_is_not_taken_for_this_one(self):
    workdir = self.folder / "run"
    workdir.mkdir()
    line = '{{"step": {}, "step_ms": 1.0, "account": {{"secs": {}}}}}\n'
    log = "".join(line.format(step, 100 * step) for step in (1, 2))
    (workdir / "metrics.jsonl").write_text(log)
    with self.assertRaisesRegex(ValueError, "has a run, which would be taken"):
      trial.run([], workdir=workdir, secs=50.0)

  def test_one_that_ignores_interrupts_ends_with_the_trial(self):
    """As one in the background of a script does until it has begun."""
    command = self.folder / "python"
    outlived = self.folder / "outlived"
    command.write_text(f"#!/bin/sh\nsleep 5\ntouch {outlived}\n")
    command.chmod(0o755)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    self.addCleanup(signal.signal, signal.SIGINT, before)
    with (
        mock.patch.object(sys, "executable", str(command)),
        mock.patch.object(trial, "_START_SECS", -1.0),
        self.assertRaisesRegex(ValueError, "has ended early"),
    ):
      trial.run([], workdir=self.folder / "run", secs=0.0)
    self.assertFalse(outlived.exists())
