"""What the nodes that are left agree on."""

import dataclasses
import operator

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
_NAMED = slowness.Named(3, 1, "n1", "h", 2.0, 9.0)
_BOTH = (_NAMED, slowness.Named(5, 2, "n2", "x", 4.0, 9.0))


def status(**changes):
  """Returns the status of a member, with what its only node holds."""
  usual = dict(holdings=holdings_lib.NOTHING, steps=4, version=0, layout=_LAYOUT)
  return agreement.Status(**usual | changes)


def new(**changes):
  """Returns the status of a node that has just come."""
  return status(steps=-1, version=-1, layout=_NOBODY, **changes)


def everybody(without=(), **changes):
  return {n: status(**changes) for n in range(6) if n not in without}


def agree(statuses, **options):
  said = [dataclasses.replace(s, holdings={n: s.holdings}) for n, s in statuses.items()]
  return agreement.agree(said, layouts.make_rules(3, 2, **options), zones={})


class AgreeTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # What nodes say, and what they agree on.
      (
          "a_death_in_a_step",
          everybody([1]) | {0: status(holdings=_HELD)},
          {
              "steps": 4,
              "known_version": 0,
              "version": 1,
              "lost": {1},
              "victims": ((0, 1),),
              "layout.roles": (failover.Roles((0, 0, 2), {0: 2}), _LAYOUT.roles[1]),
              "change.rung": "shadow",
              "change.is_immediate": True,
              "is_fresh": False,
          },
      ),
      (
          "no_copy_left",
          {2: status(saved=(2, 4)), 5: status(saved=(2,))},
          {
              "change.rung": "checkpoint",
              "restored": 2,
              "change.rolls_back": True,
              "change.layout.nodes": {2, 5},
          },
      ),
      (
          "who_has_gone_back_leads",
          dict.fromkeys([0, 3, 4, 5, 6], status(steps=2, version=1, rollbacks=1, layout=_NEW))
          | {1: status(steps=5)},
          {"steps": 2, "rollbacks": 1, "known_version": 1},
      ),
      (
          "all_begin_anew",
          dict.fromkeys(range(10, 17), new(saved=(3, 6))),
          {
              "change.rung": "checkpoint",
              "restored": 6,
              "change.layout.nodes": {*range(10, 16)},
              "change.rolls_back": True,
              "lost": set(),
          },
      ),
      *(
          (
              f"all_begin_again_if_{who}_has_found_damage",
              everybody(steps=6, saved=(3, 6)) | {4: found},
              {
                  "change.rung": "checkpoint",
                  "restored": 3,
                  "steps": -1,
                  "known_version": -1,
                  "layout": _NOBODY,
                  "change.rolls_back": True,
                  "change.layout.nodes": {*range(6)},
                  "lost": set(),
                  "refused": set(),
              },
          )
          for who, found in (
              ("a_member", status(steps=3, saved=(3,), damaged=(9, 6))),
              ("a_newcomer", new(saved=(3, 6), damaged=(9, 6))),
          )
      ),
      *(
          (
              f"damage_is_past_once_all_{how}",
              {n: status(steps=s, damaged=(damaged,)) for n, s in enumerate(steps)},
              {"steps": max(steps), "change.rung": "none", "layout": _LAYOUT},
          )
          for how, steps, damaged in (
              ("have_begun_with_an_older_one", [6] * 6, 9),
              ("have_trained_as_far", [6] * 6, 6),
              ("but_one_have_heard_of_the_last_commit", [7, 7, 7, 7, 6, 7], 6),
          )
      ),
      # Members 0 and 1 have committed the step after which n2 was named.
      (
          "all_know_the_slow_nodes",
          everybody(steps=5, named=(_NAMED,))
          | dict.fromkeys([0, 1], status(steps=6, named=_BOTH))
          | {6: new()},
          {"named": _BOTH},
      ),
      (
          "also_if_they_begin_again",
          everybody(steps=6, saved=(3, 6), named=_BOTH)
          | {4: status(steps=0, damaged=(6,), named=_BOTH)},
          {"named": _BOTH},
      ),
      # The others need not wait for it.
      (
          "a_folder_that_differs",
          everybody() | {3: status(steps=0)},
          {"refused": {3}, "steps": 4, "lost": {3}},
      ),
      (
          "newcomers_decide_nothing",
          everybody() | {9: new()},
          {"steps": 4, "layout": _LAYOUT, "lost": set(), "refused": set()},
      ),
      # It has the number of a node that has never come.
      (
          "a_late_node_has_nothing_of_the_first_layout",
          everybody() | {1: new()},
          {
              "lost": {1},
              "victims": ((0, 1),),
              "layout.roles": (failover.Roles((0, 0, 2), {0: 2}), _LAYOUT.roles[1]),
              "change.rung": "shadow",
          },
      ),
      (
          "a_late_node_helps_to_begin_again",
          {1: new(), 2: status(), 5: status()},
          {"lost": {0, 1, 3, 4}, "change.rolls_back": True, "change.layout.nodes": {1, 2, 5}},
      ),
  )
  def test_table(self, statuses, want):
    got = agree(statuses)
    self.assertEqual({name: operator.attrgetter(name)(got) for name in want}, want)

  @parameterized.parameters(
      # Those who have seen the last commit know how many steps were skipped.
      ({}, 3),
      ({2: status(steps=3, num_skipped=2)}, 3),
      ({6: new()}, 3),
      ({n: status(rollbacks=1, version=1, steps=2) for n in range(3)}, 0),
      ({0: status(steps=3, damaged=(4,))}, 0),
  )
  def test_skipped_steps_in_a_row(self, changes, num_skipped):
    got = agree(everybody(num_skipped=3) | changes)
    self.assertEqual(got.num_skipped, num_skipped)

  @parameterized.parameters((4, _HELD), (5, holdings_lib.NOTHING))
  def test_a_commit_that_one_has_seen_holds_for_all(self, steps, held):
    got = agree(everybody([1], holdings=_HELD) | {2: status(steps=steps)})
    self.assertEqual((got.steps, got.is_fresh), (steps, steps == 5))
    self.assertEqual(got.holdings[0], held)

  def test_new_pipelines_wait_for_their_state(self):
    got = agree(everybody([0, 1, 4]), reroute="none")
    self.assertEqual((got.change.rung, got.version, got.restored), ("reconfigure", 0, 0))
    self.assertEqual(got.layout, _LAYOUT)  # Until state has been copied.
    self.assertEqual(got.change.layout.nodes, {2, 3, 5})
    self.assertNotEmpty(got.change.copies)
    self.assertTrue(got.is_fresh)

  @parameterized.parameters(
      ([()], 0),
      ([(), ()], 0),
      ([(2, 4), (2, 4)], 4),
      ([(2, 4), (2,)], 2),
      ([(2,), (2, 4), (1, 2, 4)], 2),
      ([(), (4,)], 4),  # The first one, just complete.
      ([(2,), (4,), (2,)], 4),  # With keep=1.
  )
  def test_newest_common(self, seen, expected):
    self.assertEqual(agreement.newest_common(seen), expected)
