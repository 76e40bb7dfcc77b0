"""Templates are there for all numbers of nodes that covers need."""

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.recovery import shapes as shapes_lib
from tests import profiles

_MIB = 2**20


def _layers(num_layers, *, parameter_mib=1, residual_mib=0):
  return [
      profiles.make_layer(
          f"layer_{i}",
          parameter_bytes=parameter_mib * _MIB,
          slot_bytes=parameter_mib * _MIB,
          residual_bytes=residual_mib * _MIB,
      )
      for i in range(num_layers)
  ]


class TemplatesTest(parameterized.TestCase):

  # That it suffices is seen where pipelines are regrouped after all losses.
  @parameterized.parameters(
      (1, 0, 1), (2, 0, 3), (2, 1, 3), (3, 1, 4), (5, 0, 9), (5, 1, 7), (5, 3, 6)
  )
  def test_needed_max_nodes(self, min_nodes, num_failures, want):
    got = shapes_lib.needed_max_nodes(min_nodes, num_failures=num_failures)
    self.assertEqual(got, want)

  @parameterized.named_parameters(
      # Layers, f, memory in layers of 4 MiB, then the sizes.
      ("no_limit", 4, 1, None, [1]),
      ("all_in_one", 4, 1, 4, [1]),
      ("two_needed", 4, 1, 2, [2, 3]),
      ("two_needed_at_odds", 5, 1, 3, [2, 3]),
      ("three_needed", 6, 0, 2, [3, 4, 5]),
      ("three_needed_one_lost", 6, 1, 2, [3, 4]),
      ("three_needed_two_lost", 6, 2, 2, [3, 4]),
      ("one_each", 1, 5, 1, [1]),
  )
  def test_sizes(self, num_layers, num_failures, fitting, sizes):
    got = shapes_lib.make_templates(
        _layers(num_layers),
        num_failures=num_failures,
        memory_limit_bytes=fitting and fitting * 4 * _MIB,
        max_nodes=0,
    )
    self.assertEqual([template.partition.num_stages for template in got], sizes)

  def test_partitions_and_memory(self):
    """The last stage keeps one of two microbatches, so it may have more layers."""
    found = shapes_lib.make_templates(
        _layers(9, residual_mib=1),
        num_failures=0,
        memory_limit_bytes=30 * _MIB,
        **dict(num_microbatches=2, max_nodes=6),
    )
    mib = {t.partition.bounds: [num / _MIB for num in t.memory_bytes] for t in found}
    want = {
        (0, 4, 9): [24, 25],
        (0, 3, 6, 9): [18, 18, 15],
        (0, 2, 4, 6, 9): [12, 12, 12, 15],
        (0, 1, 3, 5, 7, 9): [6, 12, 12, 12, 10],
        (0, 1, 2, 3, 5, 7, 9): [6, 6, 6, 12, 12, 10],
    }
    self.assertEqual(mib, want)

  @parameterized.named_parameters(
      (
          "a_layer_is_too_large",
          dict(memory_limit_bytes=_MIB),
          "No pipeline of 1 to 3 nodes fits. The one of 3 nodes misses by the "
          "least: .* needs 4.0 MiB in phase .*, which is 3.0 MiB too much",
      ),
      (
          "too_few_layers",
          dict(memory_limit_bytes=4 * _MIB, num_failures=0),
          "Pipelines of 5 nodes are needed .the smallest has 3, num_failures=0" ".*only 3 layers",
      ),
  )
  def test_infeasible(self, options, message):
    with self.assertRaisesRegex(base.InfeasibleError, message):
      shapes_lib.make_templates(_layers(3), **({"num_failures": 1} | options))

  def test_refuses_more_nodes_than_layers(self):
    with self.assertRaisesRegex(ValueError, "min_nodes must be from 1 to 3 .* got 4"):
      shapes_lib.make_templates(_layers(3), num_failures=1, min_nodes=4)
