"""How the layout of a cluster changes."""

import dataclasses
import random

from absl.testing import parameterized

from bamboo_jax.base import types
from bamboo_jax.plan import batch_split, partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.recovery import assignment, layout as layout_lib
from bamboo_jax.schedule import failover
from tests import layouts


def make_layout(*rows, has_replicas=True):
  roles = tuple(
      failover.Roles.initial(layouts.nodes(row), has_replicas=has_replicas) for row in rows
  )
  return layouts.make_layout(roles, batch_split.deal_shares(2, len(roles)))


_TWO = make_layout("012", "345")


def owners(layout):
  return ["".join(map(str, r.owners)) for r in layout.roles]


class ImproveTest(parameterized.TestCase):

  def improve(self, layout, members, leaving=(), **options):
    rules = layouts.make_rules(3, 2, **options)
    return rules.improve(layout, members, zones={}, leaving=leaving)

  def test_nothing_to_do(self):
    change = self.improve(_TWO, range(8))
    self.assertEqual((change.layout, change.copies), (_TWO, ()))

  def test_a_pipeline_whose_shadow_has_two_stages_gets_fewer_shares(self):
    rules = layouts.make_rules(3, 8, split="makespan")
    before = rules.start(_TWO.pipelines)
    self.assertEqual([len(own) for own in before.shares], [4, 4])
    left = {0, 2, 3, 4, 5}
    lost = rules.lose(before, left, zones={}).layout
    self.assertEqual(lost.shares, before.shares)
    after = rules.improve(lost, left, zones={}).layout
    self.assertEqual([len(own) for own in after.shares], [3, 5])

  def test_shares_are_dropped_until_pipelines_are_made_anew(self):
    rules = layouts.make_rules(3, 2, mode="none", reroute="none", drop=True, reconfigure=False)
    left, before = {0, 1, 2, 3, 5}, make_layout("012", "345", has_replicas=False)
    dropped = rules.lose(before, left, zones={})
    self.assertEqual(dropped.rung, "drop")
    self.assertEqual(owners(dropped.layout), ["012", "315"])
    self.assertEqual(dropped.layout.shares, ((0,), ()))
    self.assertEqual(dropped.layout.owners[types.Place(1, 0)], 3)
    self.assertIsNone(dropped.layout.owners[types.Place(1, 1)])
    self.assertEqual(dropped.layout.segments, _TWO.segments)
    for layout in (
        rules.improve(dropped.layout, left, zones={}).layout,
        rules.lose(dropped.layout, left | {7}, zones={}).layout,
    ):
      self.assertEqual(layout, dropped.layout)
    anew = rules.improve(dropped.layout, left | {7}, zones={}).layout
    self.assertEqual(anew.shares, ((0,), (1,)))

  def test_nodes_with_several_stages_do_not_change_places(self):
    options = dict(num_layers=11, layout="templates", mode="none", reconfigure=False)
    rules = layouts.make_rules(6, 1, **options)
    layout = rules.start(rules.planner.fresh(range(4), {}))
    self.assertEqual(layouts.owners(layout.pipelines), ["022133"])
    self.assertEqual(rules.improve(layout, range(4), zones={}).layout, layout)

  def test_the_last_copy_does_not_leave(self):
    alone = make_layout("000")
    self.assertEqual(self.improve(alone, {0}, leaving=[0]).layout, alone)

  def test_sources_share_the_work(self):
    before = make_layout("012", "345")
    after = make_layout("012", "678")
    copies = assignment.find_copies(before, range(9), after)
    self.assertLen(copies, 6)
    self.assertGreater(len({c.source for c in copies}), 3)


class LoseTest(parameterized.TestCase):

  @parameterized.parameters(
      ("shares", ((0,), (1,), (2,), (3,))), ("whole_shares", ((0, 3), (1,), (2,), ()))
  )
  def test_pipelines_that_go_on_keep_their_shares(self, reroute, shares):
    roles = [failover.Roles((i, i + 1)) for i in range(0, 8, 2)]
    rules = layouts.make_rules(2, 4, mode="none", reroute=reroute)
    before = rules.start(layouts.make_pipelines(roles))
    self.assertEqual(before.shares, ((0,), (1,), (2,), (3,)))
    change = rules.lose(before, {0, 1, 2, 3, 4, 5, 7, 8}, zones={})
    self.assertEqual(change.rung, "reroute")
    self.assertEqual(owners(change.layout), ["01", "23", "45", "07"])
    self.assertEqual(change.layout.shares, shares)


class UnevenTest(parameterized.TestCase):
  """Three stages on nodes 0, 1 and 2, and two on 3 and 4, of five layers."""

  pipelines = tuple(
      pipelines_lib.Pipeline(partition_lib.Partition(bounds), failover.Roles.initial(nodes))
      for bounds, nodes in (((0, 1, 3, 5), (0, 1, 2)), ((0, 3, 5), (3, 4)))
  )
  layout = layout_lib.Layout(pipelines, ((0,), (1,)), (0, 1, 2, 3, 5))

  def test_who_has_which_segment(self):
    first, second = self.layout.roles
    self.assertEqual(first.owners, (0, 1, 1, 2))
    self.assertEqual(first.shadows, {0: 2, 1: 0, 2: 0, 3: 1})
    self.assertEqual(second.owners, (3, 3, 3, 4))
    self.assertEqual(second.shadows, {0: 4, 1: 4, 2: 4, 3: 3})

  @parameterized.parameters(
      ("0/1", 1, [1, 2]), ("1/1", 4, [3]), ("1/2", None, []), ("2/0", None, [])
  )
  def test_places(self, text, node, segments):
    place = types.Place.parse(text)
    self.assertEqual([*self.layout.segments_of(place)], segments)
    if node is not None:
      self.assertEqual(self.layout.places_of([node]), (place,))

  def test_only_what_a_node_lacks_is_copied(self):
    one = dataclasses.replace(self.layout, pipelines=self.layout.pipelines[1:])
    copies = assignment.find_copies(one, [0, 1, 2, 3, 4], self.layout)
    self.assertCountEqual(
        [(c.stage, c.destination) for c in copies],
        [(0, 0), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 1), (3, 2)],
    )


class StormTest(parameterized.TestCase):
  """Nodes die and come at random; at each boundary all find their place."""

  @parameterized.product(mode=["lazy", "none"], method=["replanning", "rules"], seed=[0, 1, 2])
  def test_nodes_idle_only_if_none_helps(self, mode, method, seed):
    rules = layouts.make_rules(
        2, 8, num_layers=6, layout="templates", split="makespan", mode=mode, method=method
    )
    rng = random.Random(f"{mode} {method} {seed}")
    members, newest = {*range(5)}, 4
    layout = rules.start(rules.planner.fresh(sorted(members), {}))
    for _ in range(12):
      if len(members) > 2 and rng.random() < 0.6:
        members.remove(rng.choice(sorted(members)))
        change = rules.lose(layout, members, zones={})
        self.assert_sound(layout, change, members)
        layout = change.layout
      else:
        newest += 1
        members.add(newest)
      change = rules.improve(layout, members, zones={})
      self.assert_sound(layout, change, members)
      layout = change.layout
      # By the rules, one that finds no place waits for a second one.
      if len(members - layout.nodes) > (method == "rules"):
        # Shares are too coarse for more to help.
        secs = rules.planner.times.step_secs
        all_secs = secs(rules.planner.fresh(sorted(members), {}))
        self.assertLess(secs(layout.pipelines), 1.001 * all_secs)
      for pipeline in layout.pipelines:
        self.assertLen({*pipeline.nodes}, pipeline.partition.num_stages)
        self.assertBetween(pipeline.partition.num_stages, 2, 3)

  def assert_sound(self, before, change, members):
    """Each share is dealt once, and state comes from where it is."""
    after = change.layout
    self.assertLessEqual(after.nodes, members)
    self.assertCountEqual([s for own in after.shares for s in own], range(8))
    if not change.rolls_back:
      wanted = assignment.find_copies(before, members, after)
      self.assertCountEqual(change.copies, wanted)
