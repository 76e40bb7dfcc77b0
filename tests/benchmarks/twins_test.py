"""Runs beside each other, shown together; here of what runs have left."""

import contextlib
import io
import json
import sys
from unittest import mock

from bamboo_jax.benchmarks import twins
from bamboo_jax.metrics import progress as progress_lib
from tests import folders
from tests.benchmarks import story_test

_TRAINED = ("true",)  # The runs are there already.


class TwinsTest(folders.FolderCase):

  def record(self, name, lines):
    folder = self.folder / name
    folder.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)

  def test_recorded_runs(self):
    self.record("plain", story_test.STEPS)
    self.record("failures", story_test.DEATHS)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
      runs = twins.run_all(self.folder, {"plain": _TRAINED, "failures": _TRAINED}, num_steps=4)
    self.assertEqual([len(run.recoveries) for run in runs], [0, 1])
    lines = said.getvalue().splitlines()
    self.assertLen(lines, 4)
    self.assertEndsWith(lines[2], "n0 (stage 0/0) died; n3 took over after 50 ms")

  def test_a_run_that_fails_ends_the_other(self):
    fail = "import sys; sys.exit('noise\\nerror: no such flag')"
    commands = {
        "plain": (sys.executable, "-c", "import time; time.sleep(60)"),
        "failures": (sys.executable, "-c", fail),
    }
    with self.assertRaisesRegex(
        ValueError,
        "'failures' ended with exit status 1: no such flag; all that it said "
        "is in .*failures.log",
    ):
      twins.run_all(self.folder, commands, num_steps=1)

  def test_a_long_start_is_no_silence(self):
    said = io.StringIO()
    (self.folder / "a.log").write_text("of an earlier run\n")
    wait = "print('pause: 1 of 2 programs are compiled', flush=True)"
    with mock.patch.object(progress_lib.Reminder, "every_secs", -1.0):  # Always.
      with contextlib.redirect_stdout(said):
        twins.run_all(self.folder, {"a": (sys.executable, "-c", wait)}, num_steps=1)
    self.assertEqual(said.getvalue().splitlines()[-1], "a: 1 of 2 programs are compiled")
    self.assertNotIn("earlier", said.getvalue())

  def test_a_run_that_says_nothing(self):
    fail = "import os; os._exit(3)"
    with self.assertRaisesRegex(ValueError, "exit status 3: it said nothing"):
      twins.run_all(self.folder, {"a": (sys.executable, "-c", fail)}, num_steps=1)
