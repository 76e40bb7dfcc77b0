"""Runs that take turns: one at a time, with all of its processes, and compared in pairs."""

import itertools
import sys

from bamboo_jax.benchmarks import interleave
from tests import folders

# Logs steps, and its name for each in a file that all share, in a child of the run.
_CHILD = """
import json, pathlib, sys, time
folder, name, num_steps, ms, code = sys.argv[1:]
for step in range(int(num_steps)):
  time.sleep(0.005)
  with open(pathlib.Path(folder).parent / "all", "a") as shared:
    shared.write(name)
  with open(pathlib.Path(folder, "metrics.jsonl"), "a") as log:
    log.write(json.dumps(dict(step=step + 1, step_ms=float(ms) + step)) + "\\n")
if int(code):
  sys.exit("the disk is full")
"""
_RUN = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, "-S", "-c", *sys.argv[1:]]))
"""


class FakeRun:
  """Logs a step for each look at it; the first after a pause takes longer."""

  def __init__(self, name, num_steps):
    self.name, self._left, self._times, self._is_first = name, num_steps, [9.0] * 5, False

  def go(self):
    self._is_first = True

  def stop(self):
    pass

  def read_times_ms(self):
    return [*self._times]

  def wait_for(self, num_steps):
    while len(self._times) < num_steps and self._left:
      self._times.append(1e3 if self._is_first else float(len(self._times)))
      self._is_first = False
      self._left -= 1
    return len(self._times) >= num_steps


class InterleaveTest(folders.FolderCase):

  def compare(self, numbers, *, code=0, steps=4):
    """Returns rounds of runs with these numbers of steps; the last ends with `code`."""
    names = "abc"[: len(numbers)]
    folders_ = {name: self.folder / name for name in names}
    commands = {
        name: [
            sys.executable,
            "-S",
            "-c",
            _RUN,
            _CHILD,
            str(folders_[name]),
            name,
            str(number),
            str(100 * k),
            str(code * (k == len(numbers))),
        ]
        for k, (name, number) in enumerate(zip(names, numbers, strict=True), 1)
    }
    return interleave.compare(commands, folders_, steps=steps)

  def test_one_at_a_time(self):
    rounds = self.compare([60, 50, 90])
    (number,) = {len(own) for own in rounds.values()}
    self.assertGreaterEqual(number, 2)
    for k, own in enumerate(rounds.values(), 1):
      self.assertEqual(own, sorted(own))  # Steps get longer; none is counted twice.
      self.assertGreaterEqual(own[0], 100 * k + interleave.WARMUP)
    order = (self.folder / "all").read_text()
    self.assertLen(order, 200)
    turns = [(name, len([*own])) for name, own in itertools.groupby(order)]
    for name, length in turns[:3]:
      self.assertGreaterEqual(length, interleave.WARMUP, name)
    # A run makes all steps of its turn; in its last turn it may end.
    last = {name: i for i, (name, _) in enumerate(turns)}
    for i, (name, length) in enumerate(turns):
      if i != last[name]:
        self.assertGreaterEqual(length, 4, name)

  def test_the_step_of_a_pause_is_not_counted(self):
    rounds = interleave.take_turns([FakeRun("a", 13), FakeRun("b", 100)], steps=3)
    # Steps 5, 9 and 13 are the first after a pause; a has no fourth round.
    self.assertEqual(rounds, {"a": [7.0, 11.0, 15.0], "b": [7.0, 11.0, 15.0]})

  def test_too_few_steps(self):
    with self.assertRaisesRegex(
        ValueError, "^A run ended before each had 30 steps; set config.num"
    ):
      self.compare([20, 20], steps=30)

  def test_a_run_that_fails(self):
    with self.assertRaisesRegex(ValueError, "'b' ended with exit status 1: the disk is full; all"):
      self.compare([10_000, 20], code=1)
    # The other one has been killed, though it was suspended.
    run = interleave.Run("sleep", ["sleep", "1000"], self.folder / "c", self.folder / "c.log")
    run.stop()
    run.end()
    self.assertIsNotNone(run._process.returncode)

  def test_a_command_to_its_end(self):
    for code, limit_secs, message in (
        ("import sys; sys.exit('error: bad')", 60, "'a' ended with exit status 1: bad; all that"),
        ("import os; os._exit(3)", 60, "'a' ended with exit status 3: it said nothing"),
        ("import time; time.sleep(60)", 0.1, "'a' is not done after 0.1 s: "),
    ):
      with self.assertRaisesRegex(ValueError, message):
        command = [sys.executable, "-c", code]
        interleave.call(command, self.folder, name="a", limit_secs=limit_secs)

  def test_ratio(self):
    ratio = interleave.render_ratio
    self.assertEqual(ratio([2.0, 6.0, 30.0], [1.0, 2.0, 10.0]), "3.000 [2.000, 3.000]")
    self.assertEqual(ratio([3.0], [2.0]), "1.500")
    with self.assertRaises(ValueError):  # Not a pair.
      ratio([1.0], [1.0, 2.0])
