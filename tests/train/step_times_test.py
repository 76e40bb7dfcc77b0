"""Tests of measuring delays; a process is really suspended."""

import os
import signal
import subprocess
import sys
import time

from absl.testing import absltest, parameterized

from bamboo_jax.runtime.profile import recorder
from bamboo_jax.schedule import instruction
from bamboo_jax.train.record import step_times

# Prints its suspended time whenever it gets a line.
_CHILD = """
import sys
from bamboo_jax.train.record import step_times
meter = step_times.SuspensionMeter()
print(meter.secs, flush=True)
for _ in sys.stdin:
  print(meter.secs, flush=True)
meter.close()
"""
_SUSPENDED_SECS = 0.3
_DEADLINE_SECS = 60.0


class SuspensionTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._child = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    self.addCleanup(self._child.communicate)
    self.addCleanup(self._child.kill)
    self.assertEqual(float(self._child.stdout.readline()), 0.0)

  def _ask(self):
    self._child.stdin.write("\n")
    self._child.stdin.flush()
    return float(self._child.stdout.readline())

  def test_suspended(self):
    os.kill(self._child.pid, signal.SIGSTOP)
    os.waitpid(self._child.pid, os.WUNTRACED)  # It has stopped.
    stopped_secs = time.monotonic()
    time.sleep(_SUSPENDED_SECS)  # The duration that is measured.
    took_secs = time.monotonic() - stopped_secs
    os.kill(self._child.pid, signal.SIGCONT)
    until_secs = time.monotonic() + _DEADLINE_SECS
    while not (found := self._ask()) and time.monotonic() < until_secs:
      time.sleep(0.01)
    # The first timer is due up to 10 ms after the stop.
    self.assertBetween(found, _SUSPENDED_SECS - 0.015, took_secs + 0.015)

  def test_a_busy_machine_is_no_suspension(self):
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    for loop in loops:
      self.addCleanup(loop.wait)
      self.addCleanup(loop.kill)
    begin = step_times.starved_secs()
    until_secs = time.monotonic() + _DEADLINE_SECS
    while time.monotonic() < until_secs:
      if step_times.starved_secs() - begin > 0.2:  # The loops have taken effect.
        break
    self.assertGreater(step_times.starved_secs() - begin, 0.2)
    self.assertLess(self._ask(), 0.03)


class NodesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Suspended outside of passes: 100 ms less 30 ms of waiting, and less
      # 20 ms of a redundant pass, which fills a wait.
      ("alone", True, 0.05, 0.05),
      ("with_others", False, 0.025, None),
  )
  def test_measure(self, is_alone, busy_secs, waited_secs):
    ops = instruction.Op
    row = [
        (instruction.Instruction(1, ops.RECV_ACTIVATION, 0, peer=0), 0.03),
        (instruction.Instruction(1, ops.FORWARD, 0), 0.01),
        (instruction.Instruction(1, ops.FORWARD, 1), 0.005),
        (instruction.Instruction(1, ops.BACKWARD, 0), 0.01),
        (instruction.Instruction(0, ops.REDUNDANT_FORWARD, 0), 0.02),
    ]
    got = step_times.measure_nodes(
        [recorder.MeasuredInstruction(4, i, 1.0, 1.0 + secs) for i, secs in row],
        secs=0.1,
        delays=step_times.Delays(
            waited_secs=0.03, starved_secs=0.01, suspended_secs=0.02, waited_for={3: 0.03}
        ),
        is_alone=is_alone,
    )
    self.assertEqual(got.keys(), {4})
    self.assertEqual(got[4].work, "1B*1 1F*2")
    self.assertAlmostEqual(got[4].busy_secs, busy_secs)
    self.assertEqual(got[4].starved_secs, 0.01 if is_alone else 0.0)
    self.assertEqual(got[4].suspended_secs, 0.02 if is_alone else 0.0)
    self.assertEqual(got[4].waited_for, {3: 0.03} if is_alone else {})
    self.assertAlmostEqual(got[4].pass_secs["1F"], 0.015)
    if waited_secs is None:
      self.assertIsNone(got[4].waited_secs)
    else:
      self.assertAlmostEqual(got[4].waited_secs, waited_secs)


if __name__ == "__main__":
  absltest.main()
