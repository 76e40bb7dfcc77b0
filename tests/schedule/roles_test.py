"""Who owns and shadows which stage, before and after deaths and repairs."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax.schedule import failover, holdings as holdings_lib

Roles = failover.Roles


class RolesTest(parameterized.TestCase):

  @parameterized.parameters(
      ((4, 5, 6), {0: 6, 1: 4, 2: 5}),
      # Stages of one node have one shadow, across the end of the pipeline too.
      ((4, 4, 6), {0: 6, 1: 6, 2: 4}),
      ((6, 5, 6), {0: 5, 1: 6, 2: 5}),
      ((0, 1), {0: 1, 1: 0}),
      ((0, 0), {}),
      ((0,), {}),
  )
  def test_initial(self, owners, want):
    self.assertEqual(Roles.initial(owners), Roles(owners, want))

  def test_views(self):
    roles = Roles.initial((6, 5, 6))
    self.assertEqual(roles.nodes, (6, 5))
    self.assertEqual(roles.stages_of(6), (0, 2))
    self.assertEqual(roles.stages_of(7), ())
    self.assertEqual(roles.replicas_of(5), (0, 2))


class FailOverTest(parameterized.TestCase):

  @parameterized.parameters(
      ((0, 1, 2, 3), {1}, (0, 0, 2, 3), {0: 3, 3: 2}),
      # The first stage goes to the last node, and the last to the one before.
      ((0, 1, 2, 3), {0}, (3, 1, 2, 3), {2: 1, 3: 2}),
      ((0, 1, 2, 3), {3}, (0, 1, 2, 2), {1: 0, 2: 1}),
      # Several at once.
      ((0, 1, 2, 3), {1, 3}, (0, 0, 2, 2), {}),
      ((0, 1, 2, 3, 4), {1, 3}, (0, 0, 2, 2, 4), {0: 4}),
      # A node with two stages.
      ((0, 0, 2, 3), {0}, (3, 3, 2, 3), {3: 2}),
      ((3, 1, 2, 3), {3}, (2, 1, 2, 2), {2: 1}),
      ((0, 1), {0}, (1, 1), {}),
      # Nodes of other pipelines.
      ((0, 1), {7}, (0, 1), {0: 1, 1: 0}),
      ((0, 1), {1, 7}, (0, 0), {}),
  )
  def test_roles(self, owners, lost, want_owners, want_shadows):
    roles, held = failover.fail_over(Roles.initial(owners), {}, lost)
    self.assertEqual(roles, Roles(want_owners, want_shadows))
    self.assertEqual(held, dict.fromkeys(want_owners, holdings_lib.NOTHING))

  def test_what_is_still_valid(self):
    everything = frozenset((stage, 0) for stage in range(4))
    held = holdings_lib.Holdings(everything, everything, everything, everything)
    roles, valid = failover.fail_over(Roles.initial(range(4)), dict.fromkeys(range(4), held), {1})
    self.assertEqual(roles, Roles((0, 0, 2, 3), {0: 3, 3: 2}))
    self.assertEqual(
        valid,
        {
            node: dataclasses.replace(
                held,
                residuals=frozenset((stage, 0) for stage in known),
                accumulated=frozenset((stage, 0) for stage in owned),
            )
            for node, known, owned in ((0, (0, 1), (0, 1)), (2, (2, 3), (2,)), (3, (3, 0), (3,)))
        },
    )


class RepairTest(parameterized.TestCase):

  @parameterized.parameters(
      # The spare gets what was lost, the other stages are back at home; the
      # former owner keeps its copy as the replica.
      ((0, 0, 2, 3), [8], (0, 8, 2, 3), [8], 1),
      # Stage 0 comes after the last one.
      ((3, 1, 2, 3), [8, 9], (8, 1, 2, 3), [8], 1),
      # Too few spares: the node with most stages gives one.
      ((0, 0, 2, 2, 2), [8], (0, 0, 2, 2, 8), [8], 2),
      ((0, 0, 0), [8, 9], (0, 9, 8), [8, 9], 2),
      ((0, 0), [8], (0, 8), [8], 1),
      # No place is free, or there is no spare.
      ((0, 1, 2), [8], (0, 1, 2), [], 0),
      ((0, 0, 2, 3), [], (0, 0, 2, 3), [], 0),
      ((0,), [8], (0,), [], 0),
  )
  def test_repair(self, owners, spares, want, used, num_replicas):
    got = failover.repair(Roles.initial(owners), spares)
    self.assertEqual(got.roles, Roles.initial(want))
    self.assertEqual(list(got.used), used)
    self.assertEqual(got.num_replicas, num_replicas)

  def test_repair_restores_replicas_without_spares(self):
    got = failover.repair(Roles((0, 0, 2, 3), {0: 3, 3: 2}), [])
    self.assertEqual(got.roles, Roles.initial((0, 0, 2, 3)))
    self.assertEqual(got.num_replicas, 2)

  def test_a_spare_owns_nothing(self):
    with self.assertRaisesRegex(ValueError, r"own no stage, got \[2\]"):
      failover.repair(Roles.initial((0, 0, 2)), [2])
