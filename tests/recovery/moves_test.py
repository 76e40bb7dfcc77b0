"""What is copied when pipelines change is the least of all."""

import itertools

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.recovery import moves, placement as placement_lib
from bamboo_jax.schedule import failover
from tests import profiles

_ONE = partition_lib.Partition((0, 4))
_TWO = partition_lib.Partition((0, 2, 4))
_THREE = partition_lib.Partition((0, 1, 2, 4))


def _profile(state_kib=(1, 1, 1, 1)):
  layers = [
      profiles.make_layer(f"layer_{i}", parameter_bytes=kib * 256, slot_bytes=kib * 768)
      for i, kib in enumerate(state_kib)
  ]
  return profiles.make_profile(layers, link_latency_ms=1.0, link_bytes_per_ms=1024.0)


def _pipelines(partitions, nodes, *, has_replicas=False):
  return placement_lib.make_pipelines(partitions, nodes, has_replicas)


class MoveTest(parameterized.TestCase):

  def test_layers_of_nodes(self):
    pipelines = (
        pipelines_lib.Pipeline(_THREE, failover.Roles((0, 0, 2), {2: 0})),
        pipelines_lib.Pipeline(_TWO, failover.Roles((5, 6), {1: 5}), vacant=frozenset({0})),
    )
    self.assertEqual(moves.owned_layers(pipelines), {0: {0, 1}, 2: {2, 3}, 6: {2, 3}})
    self.assertEqual(
        moves.held_layers(pipelines), {0: {0, 1, 2, 3}, 2: {2, 3}, 5: {2, 3}, 6: {2, 3}}
    )
    self.assertEqual(moves.lost_layers(pipelines, {0}), ())
    self.assertEqual(moves.lost_layers(pipelines, {2, 5, 6, 9}), (0, 1))

  def test_copies(self):
    # 1 and 4 are lost; 3 joins, and owns all. 0 and 2 have been apart.
    before = _pipelines([_TWO, _THREE], [0, 1, 4, 5, 2])
    after = _pipelines([_ONE, _TWO], [3, 0, 2])
    given = (_profile((1, 2, 3, 4)), before, after, {0, 2, 3, 5})
    self.assertEqual(
        moves.plan_layer_copies(*given),
        [
            moves.StateCopy(0, 1, source=0, destination=3, num_bytes=1024),
            moves.StateCopy(1, 2, source=5, destination=3, num_bytes=2048),
            moves.StateCopy(2, 4, source=2, destination=3, num_bytes=7168),
        ],
    )
    self.assertEqual(moves.count_moved(before, after), 2)
    self.assertAlmostEqual(moves.copy_secs(*given), (3.0 + 10.0) / 1e3)

  def test_refuses_what_nobody_has(self):
    before = _pipelines([_TWO], [0, 1])
    with self.assertRaisesRegex(base.InfeasibleError, "No live node has a copy of part 2"):
      moves.plan_layer_copies(_profile(), before, _pipelines([_ONE], [0]), [0])

  @hypothesis.settings(max_examples=20, derandomize=True)
  @hypothesis.given(
      strategies.lists(strategies.integers(1, 9), min_size=4, max_size=4),
      strategies.permutations(range(7)),
      strategies.sampled_from(list(itertools.product([_ONE, _TWO, _THREE], repeat=2))),
      strategies.sampled_from([[_TWO, _TWO], [_ONE, _THREE], [_TWO], [_THREE]]),
      strategies.booleans(),
      strategies.integers(0, 2),
  )
  def test_least_is_copied(self, sizes, order, old, new, has_replicas, num_lost):
    profile = _profile(sizes)
    num_old = sum(p.num_stages for p in old)
    before = _pipelines(old, order[:num_old], has_replicas=has_replicas)
    nodes = sorted(order[num_lost:])[:5]
    hypothesis.assume(not moves.lost_layers(before, nodes))

    def cost(after):
      copies = moves.plan_layer_copies(profile, before, after, nodes)
      num_bytes = sum(copy.num_bytes for copy in copies)
      return num_bytes, moves.count_moved(before, after)

    got = moves.assign_nodes(profile, before, new, nodes, has_replicas=has_replicas)
    num_places = sum(p.num_stages for p in new)
    least_bytes, fewest_moved = min(
        cost(_pipelines(new, chosen, has_replicas=has_replicas))
        for chosen in itertools.permutations(nodes, num_places)
    )
    num_bytes, num_moved = cost(got)
    self.assertEqual(num_bytes, least_bytes)
    self.assertBetween(num_moved, fewest_moved, fewest_moved + 1)
