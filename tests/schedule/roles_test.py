"""Who owns and shadows which stage, before and after deaths and repairs."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax.schedule import failover, holdings as holdings_lib
from tests import layouts

Roles = failover.Roles


def initial(owners):
  return Roles.initial(layouts.nodes(owners))


def parse(owners, shadows):
  """Returns roles of which shadows are written "stage:node"."""
  return Roles(
      layouts.nodes(owners), dict(layouts.nodes(pair.split(":")) for pair in shadows.split())
  )


class RolesTest(parameterized.TestCase):

  @parameterized.parameters(
      ("456", "0:6 1:4 2:5"),
      # Stages of one node have one shadow, across the end of the pipeline too.
      ("446", "0:6 1:6 2:4"),
      ("656", "0:5 1:6 2:5"),
      ("01", "0:1 1:0"),
      ("00", ""),
      ("0", ""),
  )
  def test_initial(self, owners, shadows):
    self.assertEqual(initial(owners), parse(owners, shadows))


class FailOverTest(parameterized.TestCase):

  @parameterized.parameters(
      # Owners, who is lost, then owners and shadows.
      ("0123", "1", "0023", "0:3 3:2"),
      # The first stage goes to the last node, and the last to the one before.
      ("0123", "0", "3123", "2:1 3:2"),
      ("0123", "3", "0122", "1:0 2:1"),
      # Several at once.
      ("0123", "13", "0022", ""),
      ("01234", "13", "00224", "0:4"),
      # A node with two stages.
      ("0023", "0", "3323", "3:2"),
      ("3123", "3", "2122", "2:1"),
      ("01", "0", "11", ""),
      # Nodes of other pipelines.
      ("01", "7", "01", "0:1 1:0"),
      ("01", "17", "00", ""),
  )
  def test_roles(self, owners, lost, *want):
    roles, gone = failover.fail_over(initial(owners), layouts.nodes(lost))
    self.assertEqual((roles, gone), (parse(*want), frozenset()))
    nothing = dict.fromkeys(roles.owners, holdings_lib.NOTHING)
    self.assertEqual(failover.find_valid(roles, {}), nothing)

  @parameterized.parameters(
      # Shadows, who is lost, vacant stages, then owners, shadows and stages without a copy.
      ("0:3 3:2", "0", (), "3023", "3:2", (1,)),
      ("0:3 3:2", "03", (), "0022", "", (0, 1)),
      ("0:3", "2", (), "0023", "0:3", (2,)),
      ("0:3 3:2", "2", (2,), "0023", "0:3", ()),  # It names its last owner.
  )
  def test_stages_without_a_copy(self, shadows, lost, vacant, *want):
    roles, gone = failover.fail_over(parse("0023", shadows), layouts.nodes(lost), vacant)
    self.assertEqual((roles, sorted(gone)), (parse(*want[:2]), [*want[2]]))

  def test_what_is_still_valid(self):
    everything = frozenset((stage, 0) for stage in range(4))
    held = holdings_lib.Holdings(everything, everything, everything, everything)
    roles, _ = failover.fail_over(initial("0123"), {1})
    valid = failover.find_valid(roles, dict.fromkeys(range(4), held))
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
      ("0023", "8", "0823", "8", 1),
      # Stage 0 comes after the last one.
      ("3123", "89", "8123", "8", 1),
      # Too few spares: the node with most stages gives one.
      ("00222", "8", "00228", "8", 2),
      ("000", "89", "098", "89", 2),
      ("00", "8", "08", "8", 1),
      # No place is free, or there is no spare.
      ("012", "8", "012", "", 0),
      ("0023", "", "0023", "", 0),
      ("0", "8", "0", "", 0),
  )
  def test_repair(self, owners, spares, want, used, num_replicas):
    got = failover.repair(initial(owners), layouts.nodes(spares))
    self.assertEqual((got.roles, got.used), (initial(want), layouts.nodes(used)))
    self.assertEqual(got.num_replicas, num_replicas)

  def test_repair_restores_replicas_without_spares(self):
    got = failover.repair(parse("0023", "0:3 3:2"), ())
    self.assertEqual((got.roles, got.num_replicas), (initial("0023"), 2))
