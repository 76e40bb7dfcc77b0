"""How the layout of a cluster changes."""

import itertools
import json

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.plan import batch_split
from bamboo_jax.recovery import assignment as layout_lib
from bamboo_jax.schedule import failover
from tests import layouts


def make_layout(*rows):
  roles = tuple(failover.Roles.initial(row) for row in rows)
  return layout_lib.Layout(roles, batch_split.deal_shares(2, len(roles)))


_TWO = make_layout((0, 1, 2), (3, 4, 5))


def owners(layout):
  return [r.owners for r in layout.roles]


class ImproveTest(parameterized.TestCase):

  def improve(self, layout, members, leaving=(), **options):
    rules = layouts.make_rules(3, 2, **options)
    return rules.improve(layout, members, zones={}, leaving=leaving)

  def test_nothing_to_do(self):
    change = self.improve(_TWO, range(8))
    self.assertEqual((change.layout, change.copies), (_TWO, ()))

  def test_a_spare_takes_the_place(self):
    lost = layouts.make_rules(3, 2).lose(_TWO, {0, 2, 3, 4, 5, 7}, zones={})
    change = self.improve(lost.layout, {0, 2, 3, 4, 5, 7})
    self.assertEqual(owners(change.layout), [(0, 7, 2), (3, 4, 5)])
    self.assertIn(failover.Copy(1, 0, 7), change.copies)
    for copy in change.copies:
      self.assertNotEqual(copy.source, 7)

  def test_a_lost_pipeline_comes_back(self):
    one = make_layout((3, 4, 5))
    change = self.improve(one, {2, 3, 4, 5, 8, 9})
    self.assertEqual(change.rung, "reconfigure")
    self.assertLen(change.layout.roles, 2)
    self.assertEqual(change.layout.shares, ((0,), (1,)))
    self.assertEqual(change.layout.nodes, {2, 3, 4, 5, 8, 9})

  def test_never_more_pipelines_than_shares(self):
    change = self.improve(_TWO, range(12))
    self.assertEqual(change.layout, _TWO)

  def test_who_leaves_hands_over_to_a_spare(self):
    change = self.improve(_TWO, range(7), leaving=[4])
    self.assertEqual(owners(change.layout), [(0, 1, 2), (3, 6, 5)])
    self.assertEqual(
        {(c.stage, c.destination) for c in change.copies}, {(1, 6), (2, 6)}
    )

  def test_who_leaves_hands_over_to_its_shadow(self):
    change = self.improve(_TWO, range(6), leaving=[4])
    self.assertEqual(owners(change.layout), [(0, 1, 2), (3, 3, 5)])

  def test_the_last_copy_does_not_leave(self):
    alone = make_layout((0, 0, 0))
    self.assertEqual(self.improve(alone, {0}, leaving=[0]).layout, alone)


class LoseTest(parameterized.TestCase):

  @parameterized.product(
      lost=list(itertools.combinations(range(6), 2))
      + list(itertools.combinations(range(6), 3)),
      reroute=["pipeline", "none"],
      mode=["lazy", "none"],
  )
  def test_all_stages_have_live_owners_and_shares_are_dealt(
      self, lost, reroute, mode
  ):
    before = _TWO
    if mode == "none":
      roles = tuple(r.without_replicas() for r in before.roles)
      before = layout_lib.Layout(roles, before.shares)
    rules = layouts.make_rules(3, 2, mode=mode, reroute=reroute)
    left = set(range(6)) - set(lost)
    change = rules.lose(before, left, zones={})
    after = change.layout
    self.assertLessEqual(after.nodes, left)
    self.assertCountEqual([s for own in after.shares for s in own], [0, 1])
    self.assertLen(after.shares, len(after.roles))
    for copy in change.copies:
      self.assertIn(copy.source, left)
    held = layout_lib.find_copies(before, left, before)
    self.assertEqual(held, ())
    # Whoever needs state has it, gets a copy, or goes back to a checkpoint.
    if not change.rolls_back:
      needed = layout_lib.find_copies(before, left, after)
      self.assertCountEqual(needed, change.copies)

  def test_pipelines_that_go_on_keep_their_shares(self):
    before = layouts.make_rules(2, 4, mode="none").start(
        [failover.Roles((i, i + 1)) for i in range(0, 8, 2)]
    )
    self.assertEqual(before.shares, ((0,), (1,), (2,), (3,)))
    rules = layouts.make_rules(2, 4, mode="none")
    change = rules.lose(before, {0, 1, 2, 3, 4, 5, 7, 8}, zones={})
    self.assertEqual(change.rung, "reroute")
    self.assertEqual(owners(change.layout), [(0, 1), (2, 3), (4, 5)])
    self.assertEqual(change.layout.shares, ((0, 3), (1,), (2,)))

  def test_few_nodes_own_several_stages(self):
    change = layouts.make_rules(3, 2, reroute="none").lose(
        _TWO, {0, 4}, zones={}
    )
    self.assertEqual(change.rung, "reconfigure")
    (row,) = owners(change.layout)
    self.assertEqual(set(row), {0, 4})

  def test_one_node_is_enough(self):
    change = layouts.make_rules(3, 2).lose(_TWO, {5}, zones={})
    self.assertEqual(change.rung, "checkpoint")
    self.assertEqual(owners(change.layout), [(5, 5, 5)])


class CopiesTest(absltest.TestCase):

  def test_sources_share_the_work(self):
    before = make_layout((0, 1, 2), (3, 4, 5))
    after = make_layout((0, 1, 2), (6, 7, 8))
    copies = layout_lib.find_copies(before, range(9), after)
    self.assertLen(copies, 6)
    self.assertGreater(len({c.source for c in copies}), 3)

  def test_json(self):
    content = json.loads(json.dumps(json_lib.to_plain(_TWO)))
    self.assertEqual(json_lib.from_plain(layout_lib.Layout, content), _TWO)


class DealTest(parameterized.TestCase):

  @parameterized.parameters(
      (4, 2, None, ((0, 1), (2, 3))),
      (3, 2, None, ((0,), (1, 2))),
      (3, 2, [(0,), (2,)], ((0, 1), (2,))),
      (4, 3, [(0,), (1,), (2,)], ((0, 3), (1,), (2,))),
      (4, 1, [(3,)], ((0, 1, 2, 3),)),
  )
  def test_shares(self, num_shares, num_pipelines, kept, want):
    got = batch_split.deal_shares(num_shares, num_pipelines, kept)
    self.assertEqual(got, want)

  @parameterized.parameters((2, 3), (2, 0))
  def test_too_many_pipelines(self, num_shares, num_pipelines):
    with self.assertRaisesRegex(ValueError, "num_pipelines"):
      batch_split.deal_shares(num_shares, num_pipelines)
