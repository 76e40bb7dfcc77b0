"""What the nodes that are left agree on."""

from absl.testing import parameterized

from bamboo_jax.recovery import agreement, layout as layout_lib, slowness
from bamboo_jax.schedule import failover, holdings as holdings_lib
from tests import layouts

_HELD = holdings_lib.Holdings(
    activations=frozenset({(0, 0), (0, 1)}), accumulated=frozenset({(0, 0)})
)
_LAYOUT = layouts.make_layout(
    (failover.Roles.initial((0, 1, 2)), failover.Roles.initial((3, 4, 5))), ((0,), (1,))
)
_NEW = layouts.make_layout((failover.Roles.initial((0, 1, 6)), _LAYOUT.roles[1]), _LAYOUT.shares)
_NOBODY = layout_lib.Layout()


def status(**changes):
  return agreement.Status(**dict(steps=4, version=0, layout=_LAYOUT) | changes)


def everybody(without=(), **changes):
  return {n: status(**changes) for n in range(6) if n not in without}


def agree(statuses, **options):
  return agreement.agree(statuses, layouts.make_rules(3, 2, **options), zones={})


class AgreeTest(parameterized.TestCase):

  @parameterized.parameters(
      # Those who have seen the last commit know how many steps were skipped.
      ({}, 3),
      ({2: status(steps=3, num_skipped=2)}, 3),
      ({6: status(steps=-1, layout=_NOBODY)}, 3),
      ({n: status(rollbacks=1, version=1, steps=2) for n in range(3)}, 0),
      ({0: status(steps=3, damaged=(4,))}, 0),
  )
  def test_skipped_steps_in_a_row(self, changes, num_skipped):
    got = agree(everybody(num_skipped=3) | changes)
    self.assertEqual(got.num_skipped, num_skipped)

  def test_a_death_in_a_step(self):
    statuses = everybody() | {0: status(holdings=_HELD)}
    del statuses[1]
    got = agree(statuses)
    self.assertEqual((got.steps, got.known_version, got.version), (4, 0, 1))
    self.assertEqual((got.change.rung, got.lost, got.victims), ("shadow", {1}, ((0, 1),)))
    self.assertEqual(got.layout.roles[0].owners, (0, 0, 2))
    self.assertEqual(got.layout.roles[1], _LAYOUT.roles[1])
    self.assertEqual(got.holdings[0], _HELD)
    self.assertFalse(got.is_fresh)
    self.assertTrue(got.change.is_immediate)

  def test_a_commit_that_one_has_seen_holds_for_all(self):
    got = agree(everybody([1], holdings=_HELD) | {2: status(steps=5)})
    self.assertEqual(got.steps, 5)
    self.assertTrue(got.is_fresh)
    self.assertEqual(got.holdings[0], holdings_lib.NOTHING)

  def test_new_pipelines_wait_for_their_state(self):
    got = agree(everybody([0, 1, 4]), reroute="none")
    self.assertEqual((got.change.rung, got.version), ("reconfigure", 0))
    self.assertEqual(got.layout, _LAYOUT)  # Until state has been copied.
    self.assertLen(got.change.layout.roles, 1)
    self.assertEqual(got.change.layout.nodes, {2, 3, 5})
    self.assertNotEmpty(got.change.copies)
    for copy in got.change.copies:
      self.assertIn(copy.source, {2, 3, 5})
    self.assertTrue(got.is_fresh)
    self.assertEqual(got.restored, 0)

  def test_no_copy_left(self):
    saved = {2: (2, 4), 5: (2,)}
    statuses = {n: status(saved=s) for n, s in saved.items()}
    got = agree(statuses)
    self.assertEqual((got.change.rung, got.restored), ("checkpoint", 2))
    self.assertTrue(got.change.rolls_back)
    self.assertEqual(got.change.layout.nodes, {2, 5})

  def test_who_has_gone_back_leads(self):
    back = status(steps=2, version=1, rollbacks=1, layout=_NEW)
    got = agree({0: back, 1: status(steps=5), 6: back, 3: back, 4: back, 5: back})
    self.assertEqual((got.steps, got.rollbacks, got.known_version), (2, 1, 1))

  def test_all_begin_anew(self):
    new = status(steps=-1, version=-1, layout=_NOBODY, saved=(3, 6))
    got = agree({n: new for n in range(10, 17)})
    self.assertEqual((got.change.rung, got.restored), ("checkpoint", 6))
    self.assertLen(got.change.layout.roles, 2)
    self.assertTrue(got.change.rolls_back)
    self.assertEmpty(got.lost)

  @parameterized.parameters(
      ({"steps": 3, "saved": (3,)},),
      ({"steps": -1, "version": -1, "layout": _NOBODY, "saved": (3, 6)},),
  )
  def test_all_begin_again_if_one_has_found_damage(self, found):
    statuses = everybody(steps=6, saved=(3, 6))
    statuses[4] = status(**found, damaged=(9, 6))
    got = agree(statuses)
    self.assertEqual((got.change.rung, got.restored), ("checkpoint", 3))
    self.assertEqual((got.steps, got.known_version), (-1, -1))
    self.assertEqual(got.layout, _NOBODY)
    self.assertTrue(got.change.rolls_back)
    self.assertEqual(got.change.layout.nodes, {*range(6)})
    self.assertEmpty(got.lost | got.refused)

  @parameterized.parameters(
      ([6] * 6, 9),  # All have begun with an older one.
      ([6] * 6, 6),  # All have trained as far.
      ([7, 7, 7, 7, 6, 7], 6),  # One has not heard of the last commit.
  )
  def test_damage_is_past_once_all_are_as_far(self, steps, damaged):
    got = agree({n: status(steps=s, damaged=(damaged,)) for n, s in enumerate(steps)})
    self.assertEqual((got.steps, got.change.rung), (max(steps), "none"))
    self.assertEqual(got.layout, _LAYOUT)

  # Members 0 and 1 have committed the step after which n2 was named.
  def test_all_know_the_slow_nodes(self):
    first = slowness.Named(3, 1, "n1", "h", 2.0, 9.0)
    both = (first, slowness.Named(5, 2, "n2", "x", 4.0, 9.0))
    statuses = everybody(steps=5, named=(first,))
    statuses |= {n: status(steps=6, named=both) for n in (0, 1)}
    statuses[6] = status(steps=-1, version=-1, layout=_NOBODY)  # A newcomer.
    self.assertEqual(agree(statuses).named, both)
    again = everybody(steps=6, saved=(3, 6), named=both)
    again[4] = status(steps=0, damaged=(6,), named=both)
    self.assertEqual(agree(again).named, both)

  def test_folders_that_differ(self):
    got = agree(everybody() | {3: status(steps=0)})
    self.assertEqual(got.refused, {3})
    self.assertEqual(got.steps, everybody()[0].steps)
    self.assertEqual(got.lost, {3})  # The others need not wait for it.
    self.assertEmpty(agree(everybody()).refused)

  @parameterized.parameters(
      ({0: ()}, 0),
      ({0: (), 1: ()}, 0),
      ({0: (2, 4), 1: (2, 4)}, 4),
      ({0: (2, 4), 1: (2,)}, 2),
      ({0: (2,), 1: (2, 4), 2: (1, 2, 4)}, 2),
      ({0: (), 1: (4,)}, 4),  # The first one, just complete.
      ({0: (2,), 1: (4,), 2: (2,)}, 4),  # With keep=1.
  )
  def test_newest_common(self, seen, expected):
    self.assertEqual(agreement.newest_common(seen), expected)

  def test_newcomers_decide_nothing(self):
    got = agree(everybody() | {9: status(steps=-1, version=-1, layout=_NOBODY)})
    self.assertEqual((got.steps, got.layout, got.lost), (4, _LAYOUT, frozenset()))
