"""Layouts times kinds of faults, and how a case that fails is repeated."""

import dataclasses
import shlex
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.training.setup import accept
from bamboo_jax.verify import layouts as layouts_lib, table, trials as trials_lib
from tests.verify import small

ARGUMENTS = ("--config=mine.py", "--config.seed=2")
GIVEN = layouts_lib.SweepLayout((("pipeline.num_stages", 3), ("redundancy.mode", "lazy")))
DRAWN = layouts_lib.SweepLayout(number=7)
FAULTS = "'--faults=1,0/1,5,kill;2,,,join'"
CASE = (small.make_case("1,0/1,5 2,,,join").faults, "losses differ")


def make_config(*size):
  return accept.accept(small.make_config(*size))


def make_row(kind, layout, *args):
  config = make_config(2, 2, 1)
  return table.VerifyRow(
      table.VerifyJob(layout, config, (kind,), ARGUMENTS, num_events=3), kind, *args
  )


class TableTest(parameterized.TestCase):

  @parameterized.parameters(
      (GIVEN, CASE, f"--sweep=pipeline.num_stages=3 --sweep=redundancy.mode=lazy {FAULTS}"),
      (DRAWN, CASE, f"--layouts=1 --seed=7 {FAULTS}"),
      (DRAWN, (None, "error"), "--layouts=1 --seed=7 --kinds=mixed"),  # No plan.
  )
  def test_find_command(self, layout, failed, wanted):
    text = table.find_command(make_row("mixed", layout), failed[0])
    self.assertEqual(text, f"bamboo verify {shlex.join(ARGUMENTS)} {wanted} --num_events=3")

  def test_render(self):
    row = make_row("single", GIVEN, {"0123456789abcdef": 5}, [CASE], {"shadow": 4}, 1.25)
    self.assertEqual(
        table.render(row),
        "0123456789ab kind=single cases=6 same=5 shadow=4 secs=1.2 "
        "pipeline.num_stages=3 redundancy.mode=lazy",
    )
    empty = dataclasses.replace(row, states={}, failures=[])
    self.assertStartsWith(table.render(empty), "none kind=single ")

  def test_random_layouts_of_one_program(self):
    config = make_config(2, 2, 1).changed({"pipeline.executor": "spmd"})
    with self.assertRaisesRegex(ValueError, "^Random layouts need config.pipeline.executor='rows'"):
      table.plan(config, ("mixed",), count=2)

  def test_each_kind_has_a_row_that_names_what_failed(self):
    config = make_config(2, 2, 1)
    table.prepare(config)  # In this process, whose devices are known.
    (job,) = table.plan(config, ("single", "second"), every=9)
    tried = []

    def run(unused, case):
      tried.append(case)
      if len(tried) == 2:
        raise ValueError("a disk is full")
      return trials_lib.TrialOutcome((), (), ("shadow",), (), "a" * 64)

    with mock.patch.object(trials_lib.Trials, "run", run):
      single, second = table.run(job)
    self.assertEqual((single.kind, second.kind), ("single", "second"))
    self.assertEqual(single.failures, [(tried[1].faults, "ValueError: a disk is full")])
    self.assertEqual(single.states, {"a" * 64: len(tried) - 1})
    self.assertEqual(single.counts, {"shadow": len(tried) - 1})
    self.assertEqual((second.states, second.failures), ({}, []))  # Of two nodes.

  def test_a_replica_that_differs_at_the_end_fails_the_case(self):
    trials, case = small.read("2x2x1 mode=lazy check_every_steps=0")
    take = trials_lib.replicas.take_prints

    def take_wrong(engine, steps):
      prints = take(engine, steps)
      node = engine.roles[0].shadows[0]
      wrong = {name: print_ ^ 1 for name, print_ in prints.nodes[node].items()}
      return dataclasses.replace(prints, nodes={**prints.nodes, node: wrong})

    with mock.patch.object(trials_lib.replicas, "take_prints", take_wrong):
      with self.assertRaisesRegex(base.ReplicaMismatchError, "differ between nodes"):
        trials.run(case)

  def test_a_layout_without_a_plan(self):
    config = make_config(2, 2, 1)
    table.prepare(config)
    too_deep = (("pipeline.num_stages", 9),)
    make = lambda number: table.VerifyJob(
        layouts_lib.SweepLayout(too_deep, number), config, ("single",)
    )
    with self.assertRaisesRegex(ValueError, "num_stages"):
      table.run(make(None))
    (row,) = table.run(make(4))
    ((faults, message),) = row.failures
    self.assertIsNone(faults)
    self.assertRegex(message, "num_stages")
