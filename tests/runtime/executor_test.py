"""What rows do around each instruction."""

import types

from absl.testing import absltest

from bamboo_jax.runtime import executor as executor_lib
from bamboo_jax.schedule import instruction as instruction_lib, timeline as timeline_lib


def make_slot(node, microbatch):
  forward = instruction_lib.Instruction(node, instruction_lib.Op.FORWARD, microbatch)
  return timeline_lib.Slot(node, forward, microbatch, microbatch + 1.0)


class RowsTest(absltest.TestCase):

  def test_faults_and_losses_come_before_each_local_instruction(self):
    said = []
    node = types.SimpleNamespace(run=lambda i: said.append(f"run {i}"))
    engine = types.SimpleNamespace(
        nodes={1: node}, clock=types.SimpleNamespace(catch_up=lambda: None)
    )
    members = types.SimpleNamespace(check=lambda: said.append("check"))
    recorder = types.SimpleNamespace(add=lambda node, i, _: said.append(f"{i}"))
    rows = executor_lib.RowsExecutor(engine, members)
    slots = tuple(make_slot(n, m) for n in (0, 1) for m in (0, 1))
    rows.plan([timeline_lib.Timeline(slots, (0, 1), 2.0)])
    rows.compute(lambda n: said.append(f"strike {n}"), recorder)
    one = lambda i: ["strike 1", "check", f"run {i}", i, "check"]
    self.assertEqual(said, one("1F0") + one("1F1"))
