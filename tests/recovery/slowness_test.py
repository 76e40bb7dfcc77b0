"""Tests of finding slow nodes."""

import csv
import dataclasses
import itertools
import pathlib
import random

from absl.testing import parameterized

from bamboo_jax.recovery import slowness
from tests import tables

NodeStep = slowness.NodeStep


def _step(busy, *, works="0101", waited=None):
  """Returns a step: busy milliseconds by node; the rest of it is waited."""
  return {
      node: NodeStep(work, ms / 1e3, (waited or {}).get(node, 200.0 - ms) / 1e3)
      for node, (ms, work) in enumerate(zip(busy, works, strict=True))
  }


_USUAL = _step([20, 30, 20, 30])
_SLOW_1 = _step([20, 150, 20, 30])
_THREE = [_SLOW_1] * 3
_PAST = [_USUAL] * slowness.LEAST_PAST
_NUM_USUAL = slowness.NUM_KEPT - slowness.NUM_CONFIRMED


class FindSlowTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Steps, and the nodes that are slow. A single step follows three times on the usual ones.
      ("five_times", _SLOW_1, {1: 5.0}),
      ("by_more_than_half", _step([20, 48, 20, 30]), {1: 1.6}),
      ("not_by_less", _step([20, 42, 20, 30]), {}),
      ("not_a_slow_machine", _step([100, 150, 100, 150]), {}),
      ("more_than_its_machine", _step([40, 180, 40, 60]), {1: 3.0}),
      ("two_of_four", _step([100, 150, 20, 30]), {}),
      ("not_other_work", _step([20, 90, 20, 30], works="0201"), {}),
      ("it_waits_more", _step([20, 150, 20, 30], waited={1: 190}), {}),
      ("it_starves", _SLOW_1 | {1: dataclasses.replace(_SLOW_1[1], starved_secs=0.115)}, {}),
      ("not_after_two", [*_PAST, *[_SLOW_1] * 2], {}),
      ("not_if_one_was_usual", [*_PAST, _SLOW_1, _USUAL, _SLOW_1], {}),
      ("not_without_a_past", [*_PAST[1:], *_THREE], {}),
      ("not_from_the_start", [_SLOW_1] * 30, {}),
      ("one_of_the_past_was_longer", [_step([20, 151, 20, 30]), *_PAST, *_THREE], {}),
      ("it_has_just_come", [{n: s for n, s in _USUAL.items() if n != 1}] * 20 + _THREE, {}),
      ("two_nodes", [{n: s[n] for n in (0, 1)} for s in _PAST + _THREE], {1: 5.0}),
      ("only_one", [{1: s[1]} for s in _PAST + _THREE], {1: 5.0}),
      ("too_few_steps", [_SLOW_1] * 2, {}),
      (
          "waits_unknown",
          [{n: NodeStep(s.work, s.busy_secs) for n, s in one.items()} for one in _PAST + _THREE],
          {1: 5.0},
      ),
      ("old_steps_do_not_count", [_SLOW_1, *[_USUAL] * _NUM_USUAL, *_THREE], {1: 5.0}),
  )
  def test_history(self, history, want):
    found = slowness.find_slow([*_PAST, *[history] * 3] if isinstance(history, dict) else history)
    self.assertEqual({node: round(factor, 6) for node, factor in found.items()}, want)


def _parse(node, cell):
  return NodeStep(str(node % 4), *(int(ms) / 1e3 for ms in cell.split("/")))


def _read_traces():
  """Returns the recorded steps, by trace: busy, waited and starved ms, as members vote.

  A suspended node lost a part of its time, in periods of 100 ms.
  """
  traces = {}
  with pathlib.Path(__file__).with_name("recorded_steps.csv").open() as file:
    for trace, *row in itertools.islice(csv.reader(file), 1, None):
      step = {n: _parse(n, cell) for n, cell in enumerate(row)}
      traces.setdefault(trace, []).append(step)
  return traces


_NUM_HEALTHY = 11  # Steps before a node was suspended.
# No node was suspended in these at all.
_HEALTHY = ("overloaded", "nobody", "computing", "computing_beside_loops", "nobody_beside_loops")
# Nodes that were suspended for a part of their time, and the number of steps after
# which each is named; some are not 1.5 times as slow.
_SUSPENDED = tables.read_rows("""
half_3                  3  3
half_3_beside_loops     3  3
half_2_beside_loops     2  3
half_5                  5  5
half_4_beside_loops     4  4
half_0                  0  -
computing_half_3        3  3
part_80_7               7  3
part_65_2               2  3
part_35_1               1  -
part_20_0               0  -
part_20_6               6  -
part_20_5               5  -
part_20_0_beside_loops  0  -
computing_part_20_6     6  -
""")


def _replay(steps):
  """Returns the slow nodes after each step."""
  ends = range(1, len(steps) + 1)
  return [slowness.find_slow(steps[:end][-slowness.NUM_KEPT :]) for end in ends]


class RecordedTest(parameterized.TestCase):
  """Steps of clusters of eight workers on two processors, 4 stages each.

  Workers are paced, or compute, while 15 to 30 other processes want to run. The
  numbers in a name are the percentage of its time for which the last node in it
  was suspended, in periods of 100 ms.
  """

  traces = _read_traces()

  @parameterized.parameters(*_SUSPENDED)
  def test_a_suspended_node_is_named(self, trace, node, num_steps):
    steps = self.traces[trace]
    past = steps[:_NUM_HEALTHY] * 2  # As long as a past must be.
    found = _replay(past + steps[_NUM_HEALTHY:])
    self.assertEqual(set().union(*found), {int(node)} if num_steps else set())
    if num_steps:
      self.assertEqual([*map(bool, found)].index(True), len(past) + int(num_steps) - 1)

  # The claim is about 8,000 steps, in views of 400.
  def test_noise_names_nobody(self):
    rng = random.Random(0)
    healthy = [self.traces[name] for name in _HEALTHY]
    healthy += [self.traces[name][:_NUM_HEALTHY] for name, *_ in _SUSPENDED]
    for steps in healthy:
      drawn = []
      while len(drawn) < 400:  # Five successive ones, since noise lasts.
        first = rng.randrange(len(steps) - 4)
        drawn += steps[first : first + 5]
      self.assertFalse(any(_replay(drawn)))
