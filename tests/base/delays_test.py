"""Tests of measuring delays; a process is really suspended."""

import os
import signal
import subprocess
import sys
import time

from absl.testing import absltest

from bamboo_jax.base import delays

# Prints its suspended time whenever it gets a line.
_CHILD = """
import sys
from bamboo_jax.base import delays
meter = delays.SuspensionMeter()
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
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
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
    begin = delays.starved_secs()
    until_secs = time.monotonic() + _DEADLINE_SECS
    while time.monotonic() < until_secs:
      if delays.starved_secs() - begin > 0.2:  # The loops have taken effect.
        break
    self.assertGreater(delays.starved_secs() - begin, 0.2)
    self.assertLess(self._ask(), 0.03)


if __name__ == "__main__":
  absltest.main()
