"""Rows: faults come before instructions, and redundant passes fill waits."""

import time
import types

from absl.testing import absltest, parameterized

from bamboo_jax.runtime import executor as executor_lib
from bamboo_jax.runtime.profile import recorder
from bamboo_jax.runtime.wire import links as links_lib
from bamboo_jax.schedule import (
    channel as channel_lib,
    instruction as instruction_lib,
    redundancy,
    rule as rule_lib,
    timeline as timeline_lib,
)

Op = instruction_lib.Op
Instruction = instruction_lib.Instruction

_RECEIVE = Instruction(0, Op.RECV_GRAD, 0, peer=1)
_FORWARD = Instruction(0, Op.FORWARD, 0)
_PASSES = [Instruction(1, Op.REDUNDANT_FORWARD, m) for m in range(3)]
_LONG_MS = 1e9


class Wire:
  """A transport on which a value arrives after some questions for it."""

  def __init__(self, after):
    self.after, self.waited = after, []

  def wait(self, node, channel, secs):
    del node, channel
    self.waited.append(secs)
    self.after -= 1
    return self.after < 0


class Node:
  """A node that notes what it runs; a pass ends when it is waited for."""

  def __init__(self, wire, *, paced_secs=0.0):
    self.store = types.SimpleNamespace(activations={(0, 0), (0, 1), (0, 2)})
    self.ran, self.is_free, self.free_secs = [], True, paced_secs
    self.links = links_lib.Links(wire, None)

  def find_channel(self, instruction):
    assert instruction == _RECEIVE
    return channel_lib.Channel("gradients", (1, 0), (0,))

  def run(self, instruction):
    self.ran.append(instruction)
    self.is_free = instruction.is_transfer
    return len(self.ran)

  def wait(self):
    self.is_free = True


def make_filling(*, latest_ms=_LONG_MS, span_ms=0.0):
  own = rule_lib.WaitRule(
      passes=_PASSES, pass_ms=lambda i: 1.0, latest_ms={_RECEIVE: latest_ms}, span_ms=span_ms
  )
  bare = timeline_lib.Timeline((), (0,), 0.0)
  return redundancy.StepFilling([redundancy.PlannedRows(bare, {0: own}, costs=None)])


_FILLING = make_filling()


class FillerTest(parameterized.TestCase):

  def _run(self, node, *row, filling=_FILLING, number=0):
    filler = executor_lib.Filler()
    filler.filling = filling
    filler.begin({number: node})
    done = [run for i in row for run in filler.run(node, i)]
    return [i for i, _ in done + [run[1:] for run in filler.finish()]]

  #    When the value arrives, the rule, and the number of the node; what has run.
  @parameterized.named_parameters(
      ("value_is_there", 0, {}, 0, [_RECEIVE, _FORWARD]),
      ("after_a_pass", 1, {}, 0, [_PASSES[0], _RECEIVE, _FORWARD]),
      # A pass asks twice: while the device is busy, and then.
      ("after_two", 3, {}, 0, [*_PASSES[:2], _RECEIVE, _FORWARD]),
      ("there_are_no_more", 9, {}, 0, [*_PASSES, _RECEIVE, _FORWARD]),
      ("nothing_fits", 9, dict(latest_ms=0.0), 0, [_RECEIVE, _FORWARD]),
      (
          *("at_the_end", 9, dict(latest_ms=0.0, span_ms=_LONG_MS), 0),
          [_RECEIVE, _FORWARD, *_PASSES],
      ),
      ("a_spare", 9, {}, 7, [_RECEIVE, _FORWARD]),
      ("no_rule", 9, None, 0, [_RECEIVE, _FORWARD]),  # As after a death.
  )
  def test_what_fills_a_wait(self, after, rule, number, want):
    node = Node(Wire(after))
    filling = rule if rule is None else make_filling(**rule)
    self.assertEqual(self._run(node, _RECEIVE, _FORWARD, filling=filling, number=number), want)
    self.assertEqual(node.ran, want)

  def test_inputs_have_not_arrived(self):
    node = Node(Wire(9))
    node.store.activations = {(0, 1)}
    self.assertEqual(self._run(node, _RECEIVE), [_PASSES[1], _RECEIVE])

  @parameterized.parameters((0.0, 1e-3), (float("inf"), float("inf")))
  def test_waits_for_the_device_or_the_value(self, paced_secs, most_secs):
    """A paced node knows when it is free."""
    wire = Wire(0)
    got = self._run(Node(wire, paced_secs=paced_secs), _FORWARD, _RECEIVE)
    self.assertEqual(got, [_FORWARD, _RECEIVE])
    (secs,) = wire.waited
    self.assertBetween(secs, paced_secs, most_secs)

  def test_learns_from_steps(self):
    filler = executor_lib.Filler()
    for stretch, want in ((3.0, 3.0), (1.1, 1.1), (1.0, 1.0), (0.9, 1.0)):
      filler.learn(stretch)
      self.assertEqual(filler.stretch, want)
    for _ in range(redundancy.NUM_STEPS):
      filler.learn(2.0)
    self.assertEqual(filler.stretch, 2.0)

  def test_what_has_run(self):
    filler = executor_lib.Filler()
    filler.filling = make_filling()
    before = time.perf_counter()
    filler.begin({0: Node(Wire(9))})
    start = time.perf_counter()
    measured = [
        recorder.MeasuredInstruction(node, i, start + since, start + until)
        for node, i, since, until in (
            (0, _FORWARD, 1.0, 1.5),
            (0, _PASSES[0], 1.5, 1.75),
            (0, _RECEIVE, 1.75, 2.0),
            (1, _FORWARD, 1.0, 2.0),
        )
    ]
    (ran,) = filler.ran(measured).values()
    self.assertEqual(ran.microseconds, (500_000,))
    self.assertEqual(ran.filled, ((1, 1, 0, 250_000),))
    late = round(1e6 * (start - before)) + 1
    self.assertBetween(ran.span, 1_500_000, 1_500_000 + late)


class RowsTest(absltest.TestCase):

  def test_faults_and_losses_come_before_each_local_instruction(self):
    said, fake = [], types.SimpleNamespace
    node, clock = fake(run=lambda i: said.append(f"run {i}")), fake(catch_up=lambda: None)
    members = fake(check=lambda: said.append("check"))
    recorder = fake(add=lambda node, i, _: said.append(f"{i}"))
    rows = executor_lib.Executor(fake(nodes={1: node}, clock=clock), members)
    passes = [(n, m) for n in (0, 1) for m in (0, 1)]
    slots = [timeline_lib.Slot(n, Instruction(n, Op.FORWARD, m), m, m + 1.0) for n, m in passes]
    rows.plan([timeline_lib.Timeline(tuple(slots), (0, 1), 2.0)])
    rows.compute(lambda n: said.append(f"strike {n}"), recorder)
    one = lambda i: ["strike 1", "check", f"run {i}", i, "check"]
    self.assertEqual(said, one("1F0") + one("1F1"))
