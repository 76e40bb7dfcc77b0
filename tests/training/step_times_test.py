"""Tests of measuring delays."""

import dataclasses
import os
import subprocess
import sys
import time

from absl.testing import absltest, parameterized

from bamboo_jax.training.record import step_times
from tests import layouts
from tests.training import deaths_test

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


class OwedTest(absltest.TestCase):

  def find(self, passes, layout, **facts):
    """Returns when owed passes ran; a pass has node, stage, start and end."""
    measured = [deaths_test.make_pass(*where, "F", *secs) for *where, secs in passes]
    recovery = deaths_test.make_recovery(**{"ready_at_secs": 10.5} | facts)
    return step_times.find_owed(measured, [recovery], layout)[1]

  def test_owed_passes(self):
    layout = layouts.lay_out((0, 0), (2, 3))
    gone = dataclasses.replace(layout.pipelines[0], vacant=frozenset({1}))
    vacant = dataclasses.replace(layout, pipelines=(gone, layout.pipelines[1]))
    # Node 3 runs its own; the first one was still running at the death.
    passes = [(0, 1, (10.25, 11.75)), (0, 1, (11.0, 12.0)), (0, 1, (12.0, 12.5))]
    passes.append((3, 1, (10.5, 12.5)))
    more = [*passes, (2, 0, (10.5, 13.0))]
    for facts, ran, after, want in (
        ({"ready_at_secs": None}, passes, layout, {}),  # Nothing is planned yet.
        ({}, passes, layout, {2: (0.5, 2.0)}),
        ({"rung": "reconfigure"}, passes, layout, {2: (0.0, 2.0)}),  # All passes are repeated.
        # Its place is that of another pipeline now.
        ({"rung": "reroute"}, passes, layout, {2: (0.0, 2.0)}),
        ({"rung": "reroute"}, more, layout, {2: (0.0, 2.5)}),
        ({"rung": "reroute"}, more, vacant, {2: (0.0, 2.0)}),
        # The other pipelines compute all of its shares.
        ({"rung": "reroute", "victims": ("2/1",)}, passes, layout, {2: (0.0, 2.0)}),
        ({"rung": "drop", "victims": ("2/1",)}, passes, layout, {}),
    ):
      self.assertEqual(self.find(ran, after, **facts), want)


class NodesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Suspended outside of passes: 100 ms less 30 ms of waiting, and less
      # 20 ms of a redundant pass, which fills a wait.
      ("alone", True, 50, 50, 10),
      ("with_others", False, 25, None, 0),
  )
  def test_measure(self, is_alone, *want_ms):
    row = ((1, "RA", 0.03), (1, "F", 0.01), (1, "F", 0.005), (1, "B", 0.01), (0, "RF", 0.02))
    ran = [deaths_test.make_pass(4, stage, op, 1.0, 1.0 + secs) for stage, op, secs in row]
    passes = step_times.find_passes(ran)
    (got,) = step_times.find_nodes(
        *(ran, passes), secs=0.1, waited_secs=0.03, starved_secs=0.01, is_alone=is_alone
    ).values()
    self.assertEqual(got.work, "1B*1 1F*2")
    secs = (got.busy_secs, got.waited_secs, got.starved_secs)
    self.assertEqual([s if s is None else round(1e3 * s, 6) for s in secs], [*want_ms])
