"""Templates are there for all numbers of nodes that covers need."""

import itertools

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.plan import memory as memory_lib, partition as partition_lib
from bamboo_jax.recovery import templates as templates_lib
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


def _can_cover(num_nodes, sizes, min_pipelines):
  """Returns whether some pipelines use all nodes, by trying all."""
  return any(
      sum(chosen) == num_nodes
      for n in range(min_pipelines, num_nodes // sizes[0] + 1)
      for chosen in itertools.combinations_with_replacement(sizes, n)
  )


class TemplatesTest(parameterized.TestCase):

  @parameterized.product(min_nodes=[1, 2, 3, 4, 5], num_failures=[0, 1, 2, 3])
  def test_needed_max_nodes_is_the_least_that_covers(self, min_nodes, num_failures):
    needed = templates_lib.needed_max_nodes(min_nodes, num_failures=num_failures)
    least = (num_failures + 1) * min_nodes

    def covers_all(max_nodes):
      sizes = range(min_nodes, max_nodes + 1)
      return all(
          _can_cover(n, sizes, num_failures + 1) for n in range(least, least + 2 * min_nodes)
      )

    self.assertTrue(covers_all(needed))
    if needed > min_nodes:
      self.assertFalse(covers_all(needed - 1))

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
    got = templates_lib.make_templates(
        _layers(num_layers),
        num_failures=num_failures,
        memory_limit_bytes=fitting and fitting * 4 * _MIB,
        max_nodes=0,
    )
    self.assertEqual([template.partition.num_stages for template in got], sizes)

  def test_is_the_best_partition(self):
    layers = _layers(9, residual_mib=1)
    limit = 30 * _MIB
    got = templates_lib.make_templates(
        layers, num_failures=0, memory_limit_bytes=limit, num_microbatches=2, max_nodes=6
    )
    for template in got:
      num_nodes = template.partition.num_stages
      wanted = partition_lib.split_layers(
          layers,
          num_nodes,
          limit,
          in_flight=[min(num_nodes - s, 2) for s in range(num_nodes)],
          upkeep=memory_lib.OVERLAPPED,
      )
      self.assertEqual(template.partition, wanted)
      self.assertEqual(
          template.memory_bytes,
          tuple(
              (4 + min(num_nodes - s, 2)) * len(wanted.layers(s)) * _MIB for s in range(num_nodes)
          ),
      )

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
      templates_lib.make_templates(_layers(3), **({"num_failures": 1} | options))

  def test_refuses_more_nodes_than_layers(self):
    with self.assertRaisesRegex(ValueError, "min_nodes must be from 1 to 3 .* got 4"):
      templates_lib.make_templates(_layers(3), num_failures=1, min_nodes=4)
