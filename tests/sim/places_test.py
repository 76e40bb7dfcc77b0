"""Placements of simulations, compared with all others."""

import collections
import itertools

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.recovery import placement as placement_lib, survival
from bamboo_jax.sim import places as places_lib
from tests.recovery import placement_test

_PARTITION = partition_lib.Partition((0, 1, 2, 3, 4))


def _even(num_stages):
  return partition_lib.Partition(tuple(range(num_stages + 1)))


def _zones(text):
  return dict(enumerate(text))


def _best_by_force(zones, partitions, has_replicas):
  num_places = sum(p.num_stages for p in partitions)
  return max(
      survival.find_survival(
          placement_lib.make_pipelines(partitions, nodes, has_replicas), zones
      ).score
      for nodes in itertools.permutations(zones, num_places)
  )


class PlacementTest(parameterized.TestCase):

  @parameterized.named_parameters(*placement_test.SMALL)
  def test_is_the_best_of_all(self, text, depths):
    for has_replicas in (True, False):
      partitions = [partition_lib.Partition((*range(depth), 5)) for depth in depths]
      zones = _zones(text)
      pipelines, spares = places_lib.place_nodes(zones, partitions, has_replicas=has_replicas)
      self.assertEqual(
          survival.find_survival(pipelines, zones).score,
          _best_by_force(zones, partitions, has_replicas),
      )
      placed = [n for p in pipelines for n in p.nodes]
      self.assertCountEqual((*placed, *spares), zones)

  @parameterized.named_parameters(
      # Zones, pipelines, stages, then score without the sums at its end.
      ("eight_in_two", "aaaabbbb", 2, 4, (2, 1, 3, 2, 1)),
      ("eight_in_three", "aaabbbcc", 2, 4, (3, 2, 3, 3, 1)),
      ("forty_eight_in_three", "abc" * 16, 4, 12, (3, 2, 7, 3, 4)),
      ("two_hundred_in_four", "abcd" * 50, 10, 20, (4, 3, 19, 4, 14)),
  )
  def test_large_clusters_survive_most(self, text, num, depth, score):
    zones = _zones(text)
    pipelines, _ = places_lib.place_nodes(zones, [_even(depth)] * num)
    got = survival.find_survival(pipelines, zones)
    self.assertEqual(got.score[:5], score)
    self.assertEqual(got.num_apart, num * depth)

  @parameterized.named_parameters(
      ("one_large", "a" * 14 + "b" * 6 + "c" * 4, 2, 12),
      ("half", "a" * 12 + "b" * 6 + "c" * 6, 3, 8),
  )
  def test_swaps_help_if_zones_are_uneven(self, text, num, depth):
    partitions, zones = [_even(depth)] * num, _zones(text)
    pipelines, _ = places_lib.place_nodes(zones, partitions, max_tries=300)
    got = survival.find_survival(pipelines, zones)
    in_order = survival.find_survival(
        placement_lib.make_pipelines(partitions, range(24), True), zones
    )
    self.assertLen(got.zones, 3)
    self.assertGreater(got.score, in_order.score)

  @parameterized.named_parameters(
      ("too_few", "abc", [2, 2], "3 nodes cannot take the 4 places of 2 pipel"),
      ("no_pipeline", "abc", [], "3 nodes cannot take the 0 places"),
  )
  def test_refuses(self, text, depths, message):
    with self.assertRaisesRegex(base.InfeasibleError, message):
      places_lib.place_nodes(_zones(text), [_even(d) for d in depths])

  def test_first_nodes_get_the_first_places(self):
    pipelines, spares = places_lib.place_nodes(_zones("aab"), [_even(2)])
    self.assertEqual(pipelines[0].roles.owners, (0, 2))
    self.assertEqual(spares, (1,))


class PlacesTest(parameterized.TestCase):

  def zones(self, method):
    zones = {n: f"zone{n % 2}" for n in range(8)}
    placer = places_lib.Placer(method, has_replicas=True, max_tries=20)
    nodes = placer.arrange([_PARTITION] * 2, range(8), zones)
    return [[zones[n] for n in nodes[i : i + 4]] for i in (0, 4)]

  def test_cluster(self):
    self.assertEqual(self.zones("cluster"), [["zone0"] * 4, ["zone1"] * 4])

  def test_spread(self):
    for zones in self.zones("spread"):
      for here, there in zip(zones, zones[1:], strict=False):
        self.assertNotEqual(here, there)

  def test_order(self):
    self.assertEqual(self.zones("order"), [["zone0", "zone1"] * 2] * 2)

  def test_random_is_repeatable(self):
    self.assertEqual(self.zones("random"), self.zones("random"))
    self.assertNotEqual(self.zones("random"), self.zones("order"))
    counts = collections.Counter(z for p in self.zones("random") for z in p)
    self.assertEqual(counts, {"zone0": 4, "zone1": 4})

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, "did you mean 'spread'"):
      places_lib.Placer("spraed", has_replicas=True)
