"""What the nodes that are left agree on."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.train import agreement

_HELD = holdings_lib.Holdings(
    activations=frozenset({(0, 0), (0, 1)}), accumulated=frozenset({(0, 0)})
)
_ROLES = (failover.Roles.initial((0, 1, 2)), failover.Roles.initial((3, 4, 5)))
_NEW = (failover.Roles.initial((0, 1, 6)), _ROLES[1])


def status(steps=4, version=0, roles=_ROLES, holdings=holdings_lib.NOTHING):
  return agreement.Status(steps, version, roles, holdings, ("127.0.0.1", 1))


def everybody(**changes):
  return {n: status(**changes) for n in range(6)}


class AgreeTest(parameterized.TestCase):

  def test_a_death_in_a_step(self):
    statuses = everybody() | {0: status(holdings=_HELD)}
    del statuses[1]
    got = agreement.agree(statuses)
    self.assertEqual((got.steps, got.known_version, got.version), (4, 0, 1))
    self.assertEqual(got.lost, {1})
    self.assertEqual(got.victims, ("0/1",))
    self.assertEqual(got.roles[0].owners, (0, 0, 2))
    self.assertEqual(got.roles[1], _ROLES[1])
    self.assertEqual(got.holdings[0][0], _HELD)
    self.assertFalse(got.is_fresh)

  def test_a_commit_that_one_has_seen_holds_for_all(self):
    statuses = everybody(holdings=_HELD) | {2: status(steps=5)}
    del statuses[1]
    got = agreement.agree(statuses)
    self.assertEqual(got.steps, 5)
    self.assertTrue(got.is_fresh)
    self.assertEqual(got.holdings[0][0], holdings_lib.NOTHING)

  def test_newest_roles_win(self):
    statuses = everybody() | {n: status(version=1, roles=_NEW) for n in (0, 6)}
    del statuses[2]
    got = agreement.agree(statuses)
    self.assertEqual((got.roles, got.known_version, got.version), (_NEW, 1, 1))
    self.assertEmpty(got.lost)

  def test_newcomers_decide_nothing(self):
    got = agreement.agree(everybody() | {9: status(-1, -1, ())})
    self.assertEqual((got.steps, got.roles, got.lost), (4, _ROLES, frozenset()))

  def test_no_copy_left(self):
    statuses = everybody()
    del statuses[0], statuses[1]
    with self.assertRaises(base.UnrecoverableHereError):
      agreement.agree(statuses)

  def test_json(self):
    for want in (status(holdings=_HELD), status(-1, -1, ())):
      content = json.loads(json.dumps(want.to_json()))
      self.assertEqual(agreement.Status.from_json(content), want)


class RepairTest(parameterized.TestCase):

  def plan(self, lost, alive, **options):
    roles = [failover.fail_over(r, {}, lost)[0] for r in _ROLES]
    options = {"replicas": True, "without_spares": True} | options
    return agreement.plan_repair(roles, alive, **options)

  def test_nothing_to_do(self):
    self.assertFalse(self.plan((), range(9)).is_needed)

  def test_a_spare_takes_the_place(self):
    got = self.plan((1,), {0, 2, 3, 4, 5, 7})
    self.assertEqual(got.roles[0], failover.Roles.initial((0, 7, 2)))
    alive = {0, 2}
    for copy in got.copies[0]:
      self.assertIn(copy.source, alive)
    self.assertEqual(got.copies[1], ())
    self.assertIn(failover.Copy(1, 0, 7), got.copies[0])

  def test_each_spare_is_used_once(self):
    got = self.plan((1, 3), {0, 2, 4, 5, 7, 8})
    nodes = [n for r in got.roles for n in r.owners]
    self.assertCountEqual(nodes, {0, 2, 4, 5, 7, 8})

  @parameterized.parameters(
      ({"replicas": False}, False),
      ({"without_spares": False}, False),
      ({}, True),
  )
  def test_without_spares(self, options, is_needed):
    got = self.plan((1,), {0, 2, 3, 4, 5}, **options)
    self.assertEqual(got.is_needed, is_needed)


if __name__ == "__main__":
  absltest.main()
