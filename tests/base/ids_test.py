"""Numbers of nodes and stages."""

from absl.testing import absltest

from bamboo_jax import base


class IdsTest(absltest.TestCase):

  def test_ranges(self):
    self.assertEqual([*base.nodes(2, 4)], [2, 3])
    self.assertEqual([*base.stages(2)], [0, 1])
    self.assertEqual([*base.by_node("ab")], [(0, "a"), (1, "b")])
    self.assertEqual([*base.by_stage("ab")], [(0, "a"), (1, "b")])
