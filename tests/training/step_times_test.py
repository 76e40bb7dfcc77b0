"""Tests of measuring delays."""

import os
import subprocess
import sys
import time
from unittest import mock

from absl.testing import absltest, parameterized

from bamboo_jax.runtime.profile import recorder
from bamboo_jax.schedule import instruction
from bamboo_jax.training.record import step_times

_DEADLINE_SECS = 60.0


class StarvedTest(absltest.TestCase):

  def test_a_busy_machine(self):
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
    clock = mock.Mock(perf_counter=iter([1.0, 1.1]).__next__)
    waits, starved = iter([2.0, 2.03]), iter([5.0, 5.01])
    with (
        mock.patch.object(step_times, "time", clock),
        mock.patch.object(step_times, "starved_secs", starved.__next__),
    ):
      exchange = mock.Mock()
      type(exchange).waited_secs = property(lambda _: next(waits))
      meter = step_times.DelayMeter(exchange)
      got = meter.measure(
          [recorder.MeasuredInstruction(4, i, 1.0, 1.0 + secs) for i, secs in row],
          is_alone=is_alone,
      )
    self.assertEqual(got.keys(), {4})
    self.assertEqual(got[4].work, "1B*1 1F*2")
    self.assertAlmostEqual(got[4].busy_secs, busy_secs)
    self.assertAlmostEqual(got[4].starved_secs, 0.01 if is_alone else 0.0)
    if waited_secs is None:
      self.assertIsNone(got[4].waited_secs)
    else:
      self.assertAlmostEqual(got[4].waited_secs, waited_secs)
