"""A slow node is named once, and leaves if so configured."""

import dataclasses
import types

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.recovery import slowness
from bamboo_jax.training import worker as worker_lib
from tests import layouts, members


def make_step(*busy_ms):
  """Returns what members say about a step: one node each."""
  return [
      {n: slowness.NodeStep("0F*4", ms / 1e3, (200 - ms) / 1e3)} for n, ms in enumerate(busy_ms)
  ]


_USUAL = make_step(20, 20, 20, 20)
_SLOW_1 = make_step(20, 100, 20, 20)
_RULES = layouts.make_rules(2, 2)
_TEMPLATES = layouts.make_rules(2, 2, num_layers=4, layout="templates")
_NUM_USUAL = slowness.NUM_SKIPPED + slowness.LEAST_PAST


class SlowNodesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.events, self.reported = [], []

  def make(self, *, response="report", me=0, num_members=5, leaving=(), rules=_RULES):
    view = members.view(2, *range(num_members))
    cohort = types.SimpleNamespace(
        view=view,
        newest=types.SimpleNamespace(numbers=view.numbers, leaving=leaving),
        hosted=frozenset({me}),
        say=lambda *nodes, notice: self.reported.append((*nodes, notice)),
    )
    self.state = types.SimpleNamespace(steps=0, named=(), rules=rules)
    journal = types.SimpleNamespace(
        write_event=lambda event, *, step, values: self.events.append((event, step, values))
    )
    self.worker = types.SimpleNamespace(
        _cohort=cohort,
        _config=config_lib.Config().changed({"recovery.slow": response}),
        _journal=journal,
        _times=[],
        state=self.state,
    )

  def hear(self, *steps):
    for said in steps:
      self.state.steps += 1
      times = {node: times for one in said for node, times in one.items()}
      worker_lib.Worker._name_slow(self.worker, times)

  def test_named_once(self):
    self.make()
    self.hear(*[_USUAL] * _NUM_USUAL, *[_SLOW_1] * 2)
    self.assertEqual(self.events, [])
    self.hear(*[_SLOW_1] * 3)
    values = {"node": "n1", "host": "h", "factor": 5.0}
    values |= {"busy_ms": 100.0}
    self.assertEqual(self.events, [("slow", _NUM_USUAL + 3, values)])
    self.assertEqual([one.values for one in self.state.named], [values])
    self.assertEqual(self.reported, [])

  def test_a_slow_host_is_known_when_it_is_slow_again(self):
    self.make()
    cohort = self.worker._cohort
    for number in 1, 3:  # Of the same host, before and after it has joined.
      members = [
          dataclasses.replace(m, host="x" if m.number == number else m.name)
          for m in cohort.view.members
      ]
      cohort.view = dataclasses.replace(cohort.view, members=tuple(members))
      slow = make_step(*(100 if n == number else 20 for n in range(4)))
      self.worker._times.clear()
      self.hear(*[_USUAL] * _NUM_USUAL, *[slow] * 3)
    first, again = self.state.named
    self.assertEqual((first.host, again.host), ("x", "x"))
    self.assertNotIn("named_before", first.values)
    self.assertEqual(again.values["named_before"], 1)

  @parameterized.named_parameters(
      ("removed", dict(response="remove"), 1),
      ("of_another_member", dict(response="remove", me=2), 0),
      ("reported", dict(response="report"), 0),
      ("too_few_would_stay", dict(response="remove", num_members=2), 0),
      ("others_leave", dict(response="remove", leaving=(0, 2, 3)), 0),
      # Pipelines of 2 or 3 nodes, whose cuts make more segments than that.
      ("templates", dict(response="remove", num_members=3, rules=_TEMPLATES), 1),
      ("too_few_for_templates", dict(response="remove", num_members=2, rules=_TEMPLATES), 0),
  )
  def test_the_slow_node_leaves(self, options, num_reports):
    self.make(**{"me": 1} | options)
    count = options.get("num_members", 4)
    usual, slow = _USUAL[:count], _SLOW_1[:count]
    self.hear(*[usual] * _NUM_USUAL, *[slow] * 5)
    self.assertEqual([one.node for one in self.state.named], ["n1"])
    why = "it is 5.0 times as slow as it should be"
    self.assertEqual(self.reported, [(1, why)] * num_reports)
