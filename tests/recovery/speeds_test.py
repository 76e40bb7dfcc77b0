"""Slow nodes give layers away, and get them back; bits do not depend on it."""

import dataclasses
import functools
import itertools
import random

from absl.testing import parameterized

from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.recovery import assignment, layout as layout_lib
from bamboo_jax.schedule import holdings as holdings_lib, instruction, timeline as timeline_lib
from tests import layouts
from tests.recovery import reroute_test
from tests.schedule.verify import cuts as cuts_lib


def make(num_stages, num_pipelines, num_layers, *, num_shares=4, **options):
  """Returns rules that move layers, and the layout without slow nodes."""
  options = dict(mode="lazy", split="makespan", per_share=2) | options
  rules = layouts.make_rules(
      num_stages, num_shares, num_layers=num_layers, reroute="shares", **options
  )
  nodes = range(num_stages * num_pipelines)
  return rules, rules.start(rules.planner.fresh(nodes, {}))


def step_ms(rules, layout, slow):
  return rules.rows.play(layout.lines(rules.rows), slow=slow).span_ms


def bounds(layout):
  return [p.partition.bounds for p in layout.pipelines]


@functools.cache
def all_partitions(num_layers, num_stages):
  inner = itertools.combinations(range(1, num_layers), num_stages - 1)
  return [partition_lib.Partition((0, *some, num_layers)) for some in inner]


def best_ms(rules, layout, slow):
  """Returns the shortest step of all partitions and numbers of shares."""
  first, *others = layout.pipelines
  shares, found = [*range(rules.num_shares)], []
  for partition in all_partitions(first.partition.num_layers, len(first.nodes)):
    own = dataclasses.replace(first, partition=partition)
    for cut in range(1, len(shares)) if others else [len(shares)]:
      dealt = (tuple(shares[:cut]), tuple(shares[cut:]))[: 1 + len(others)]
      one = dataclasses.replace(layout, pipelines=(own, *others), shares=dealt, detours={})
      found.append(step_ms(rules, one, slow))
  return min(found)


class SpeedsTest(parameterized.TestCase):

  def improve(self, rules, layout, *, members=None, **options):
    members = layout.nodes if members is None else members
    change = rules.improve(layout, members, zones={}, **options)
    wanted = assignment.find_copies(layout, members, change.layout)
    self.assertEqual(change.copies, wanted)
    return change

  @parameterized.parameters(
      *itertools.product([(3, 1, 9), (2, 2, 8)], [0, 1], [1.25, 2.0, 5.0]),
      ((3, 1, 12), 2, 3.0),
      ((4, 1, 10), 2, 4.0),
      ((3, 2, 6), 2, 5.0),
  )
  def test_nearly_as_fast_as_the_best_split(self, size, node, factor):
    rules, layout = make(*size, mode="none")
    slow = {node: factor}
    after = self.improve(rules, layout, slow=slow).layout
    self.assertEqual(after.slow, slow)
    self.assertCountEqual(itertools.chain(*after.shares), range(rules.num_shares))
    took_ms = step_ms(rules, after, slow)
    self.assertLessEqual(0.9 * took_ms, best_ms(rules, layout, slow))
    if factor >= 2.0:
      self.assertLess(took_ms, 0.85 * step_ms(rules, layout, slow))

  def test_only_the_pipeline_of_a_slow_node_changes_and_comes_back(self):
    rules, layout = make(3, 2, 12, num_shares=8)
    self.assertEqual(bounds(layout), [(0, 4, 8, 12)] * 2)
    change = self.improve(rules, layout, slow={4: 3.0})
    self.assertEqual((change.rung, change.reason), ("reconfigure", "slow nodes give layers away"))
    self.assertEqual(bounds(change.layout), [(0, 4, 8, 12), (0, 5, 6, 12)])
    self.assertEqual([len(own) for own in change.layout.shares], [5, 3])
    self.assertEqual(change.layout.slow, {4: 3.0})
    self.assertEmpty(change.layout.detours)
    # Of the new stages and replicas only node 5 lacks state: nodes 3 and 4 are
    # the shadows of those whose layers they take.
    taken = {(c.stage, c.destination) for c in change.copies}
    self.assertEqual(taken, {(6, 5), (7, 5), (4, 5)})
    again = self.improve(rules, change.layout)
    self.assertEqual((again.rung, again.layout), ("none", change.layout))
    self.assertEmpty(again.copies)
    back = self.improve(rules, change.layout, slow={4: 1.0})
    self.assertEqual((back.rung, back.reason), ("reconfigure", "layers come back"))
    self.assertEqual(back.layout, layout)

  def test_a_pipeline_that_stays_slower_gets_fewer_shares(self):
    rules, layout = make(3, 2, 9, num_shares=8)
    after = self.improve(rules, layout, slow={2: 5.0}).layout
    self.assertEqual(bounds(after), [(0, 4, 8, 9), (0, 3, 6, 9)])
    self.assertEqual([len(own) for own in after.shares], [3, 5])

  def test_rows_are_planned_for_slow_nodes(self):
    rules, layout = make(3, 1, 12, mode="bubble")
    given = self.improve(rules, layout, slow={1: 3.0}).layout
    (timeline,) = layout_lib.StepPlans(rules.rows).whole(given)
    rows = {node: tuple(slot.instruction for slot in row) for node, row in timeline.rows.items()}
    costs = dataclasses.replace(rules.rows.costs, slow=given.slow)
    took_ms = timeline_lib.span_ms(instruction.Schedule(rows), costs)
    self.assertAlmostEqual(timeline.span_ms, took_ms)

  def test_a_spare_takes_the_place(self):
    rules, layout = make(3, 1, 12)
    change = self.improve(rules, layout, slow={1: 3.0}, members=range(4))
    self.assertEqual(bounds(change.layout), bounds(layout))
    self.assertEqual(change.layout.nodes, {0, 2, 3})
    # Its second node is slow, too, and there is no second spare.
    more = self.improve(rules, change.layout, slow={2: 3.0}, members={0, 1, 2, 3}).layout
    self.assertEqual(more.nodes, {0, 2, 3})
    self.assertEqual(bounds(more), [(0, 5, 11, 12)])

  def test_a_spare_that_comes_later_gets_the_usual_stage(self):
    rules, layout = make(3, 1, 12)
    given = self.improve(rules, layout, slow={1: 3.0}).layout
    self.assertNotEqual(bounds(given), bounds(layout))
    after = self.improve(rules, given, members=range(4)).layout
    self.assertEqual((after.nodes, bounds(after)), ({0, 2, 3}, bounds(layout)))

  @parameterized.named_parameters(
      ("one_layer_each", dict(num_layers=3), {}),
      ("no_time_for_copies", {}, dict(horizon_secs=1e-3)),
  )
  def test_or_shares_are_dealt(self, size, ladder):
    rules, layout = make(**dict(num_stages=3, num_pipelines=1, num_layers=12) | size)
    rules = dataclasses.replace(rules, ladder=dataclasses.replace(rules.ladder, **ladder))
    change = self.improve(rules, layout, slow={1: 4.0})
    self.assertEqual(change.rung, "reroute")
    self.assertEqual(change.reason, "slow nodes give shares away")
    self.assertEqual(bounds(change.layout), bounds(layout))
    self.assertNotEmpty(change.layout.detours)
    again = self.improve(rules, change.layout)
    self.assertEqual(again.layout, change.layout)

  def test_less_than_two_percent_do_not_count(self):
    rules, layout = make(2, 1, 10, mode="none")
    slow = {0: 1.25}
    given = rules.start(rules.speeds.split(layout.pipelines, slow), slow=slow)
    self.assertLess(step_ms(rules, given, slow), step_ms(rules, layout, slow))
    after = self.improve(rules, layout, slow=slow).layout
    self.assertEqual(bounds(after), bounds(layout))

  def test_with_a_memory_limit_nothing_moves(self):
    rules, layout = make(3, 1, 12)
    plan = dataclasses.replace(rules.rows.plan, memory_limit_bytes=1 << 40)
    rows = dataclasses.replace(rules.rows, plan=plan)
    rules = dataclasses.replace(rules, rows=rows)
    self.assertEqual(self.improve(rules, layout, slow={1: 4.0}).layout, layout)

  def test_pipelines_of_any_depth_do_not_flap(self):
    rules = layouts.make_template_rules(8, 8, gives_layers=True)
    layout = rules.start(rules.planner.fresh(range(5), {}))
    self.assertCountEqual([len(p.nodes) for p in layout.pipelines], [2, 3])
    for node in sorted(layout.nodes):
      given = self.improve(rules, layout, slow={node: 4.0})
      self.assertEqual(given.rung, "reconfigure")
      self.assertEqual(
          [p.roles for p in given.layout.pipelines], [p.roles for p in layout.pipelines]
      )
      again = self.improve(rules, given.layout)
      self.assertEqual((again.rung, again.layout), ("none", given.layout))
      back = self.improve(rules, given.layout, slow={node: 1.0}).layout
      self.assertEqual(back, layout)


class DeathTest(parameterized.TestCase):

  @parameterized.product(mode=["lazy", "none", "eager"])
  def test_deaths_with_unequal_partitions(self, mode):
    rules, usual = make(3, 2, 9, mode=mode, per_share=1, num_shares=8)
    given = rules.improve(usual, usual.nodes, zones={}, slow={1: 4.0}).layout
    self.assertNotEqual(bounds(given), bounds(usual))
    steps, rng = reroute_test.Steps(rules), random.Random(mode)
    cuts, num_changed = cuts_lib.Cuts(steps.whole(given)), 0
    for victim in sorted(given.nodes) * 2:
      held = cuts.holdings(cuts.draw(rng))
      lost, *_ = steps.die(given, held, {victim})
      self.assertEqual(bounds(lost), bounds(given))
      left = given.nodes - {victim}
      change = rules.improve(lost, left, zones={})
      after = change.layout
      self.assertEqual(after.nodes, left)
      self.assertEqual(after.slow, {n: 4.0 for n in (1,) if n in left})
      for copy in change.copies:
        self.assertIn((copy.source, copy.stage), lost.copies)
      got = {(c.destination, c.stage) for c in change.copies}
      self.assertLessEqual(after.copies, got | lost.copies)
      self.assertNotEmpty(steps.whole(after).rows)
      self.assertEqual(rules.improve(after, left, zones={}).layout, after)
      num_changed += bounds(after) != bounds(lost)
    self.assertGreater(num_changed, 0)

  def test_a_node_with_two_stages_gets_half_of_each(self):
    rules, layout = make(4, 1, 16)
    left = layout.nodes - {0}
    lost = rules.lose(
        layout, left, zones={}, holdings={n: holdings_lib.NOTHING for n in left}
    ).layout
    after = rules.improve(lost, left, zones={}, slow={1: 2.0}).layout
    (pipeline,) = after.pipelines
    self.assertEqual(pipeline.roles.owners, (3, 1, 2, 3))
    sizes = [len(some) for some in pipeline.partition.sets]
    self.assertEqual(sizes, [3, 3, 7, 3])
