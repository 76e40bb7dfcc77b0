"""Pipelines of fewer nodes than stages."""

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.schedule import failover
from tests import layouts

_STAGES = 4


def make_pipeline(owners):
  partition = layouts.make_planner(_STAGES, 2).inner.partition
  return pipelines_lib.Pipeline(partition, failover.Roles.initial(owners))


class FoldingTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 3)
  def test_few_nodes_share_all_stages(self, count):
    planner = layouts.make_planner(_STAGES, 2)
    (pipeline,) = planner.fresh(range(count), {})
    owners = pipeline.roles.owners
    self.assertEqual(set(owners), set(range(count)))
    self.assertLen(owners, _STAGES)
    most = max(owners.count(node) for node in range(count))
    self.assertEqual(most, -(-_STAGES // count))
    for node in range(count):  # Stages of a node follow each other.
      stages = pipeline.roles.stages_of(node)
      self.assertEqual(stages, tuple(range(stages[0], stages[-1] + 1)))

  def test_enough_nodes_are_planned_as_ever(self):
    planner = layouts.make_planner(_STAGES, 2)
    for nodes in (range(4), range(9)):
      self.assertEqual(planner.fresh(nodes, {}), planner.inner.fresh(nodes, {}))

  def test_nodes_keep_what_they_hold(self):
    planner = layouts.make_planner(_STAGES, 2, mode="none")
    before = (make_pipeline((5, 6, 7, 8)),)
    (after,) = planner.adapt(before, [8, 5], {})
    self.assertEqual(after.roles.owners, (5, 5, 8, 8))

  def test_nothing_changes_without_need(self):
    planner = layouts.make_planner(_STAGES, 2)
    before = (make_pipeline((3, 3, 9, 9)),)
    self.assertEqual(planner.adapt(before, [3, 9], {}), before)

  def test_replicas_only_with_redundancy(self):
    for mode, count in (("lazy", _STAGES), ("none", 0)):
      planner = layouts.make_planner(_STAGES, 2, mode=mode)
      (pipeline,) = planner.fresh([1, 2], {})
      self.assertLen(pipeline.roles.shadows, count)

  def test_nobody(self):
    planner = layouts.make_planner(_STAGES, 2)
    with self.assertRaisesRegex(base.InfeasibleError, "no node left"):
      planner.fresh([], {})
    with self.assertRaisesRegex(base.InfeasibleError, "no node left"):
      planner.adapt((make_pipeline((0, 1, 2, 3)),), [], {})


if __name__ == "__main__":
  absltest.main()
