"""Nodes of two regions with a slow link between them; small clusters against all placements."""

import dataclasses
import itertools
import random

from absl.testing import parameterized

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import partition as partition_lib, predictor as predictor_lib
from bamboo_jax.recovery import moves, placement as placement_lib, shapes as shapes_lib
from bamboo_jax.schedule import costs as costs_lib, dealing, failover, lines as lines_lib
from tests import profiles, tables

_LAYERS = 6
# Name, zones of the nodes by a letter, stages of each pipeline.
_SMALL = """
two                 ae      2
four                abef    2 2
mixed               aebf    2 2
uneven              abef    4
most_in_one         abcde   2 3
six                 aabeef  3 3
three_pipelines     aabbef  2 2 2
single_nodes        aeae    1 1 1 1
a_spare             aaeee   2 2
only_swaps_find_it  aaee    1 2 1
"""
_ZONES = dict(a="us/a", b="us/b", c="us/c", d="us/d", e="eu/a", f="eu/b")


def make_zones(text):
  return {node: _ZONES[letter] for node, letter in enumerate(text)}


def make_regions(zones, *, latency_ms=50.0, bytes_per_ms=1000.0):
  of = {n: placement_lib.region_of(zone) for n, zone in zones.items()}
  return costs_lib.Regions(of, latency_ms, bytes_per_ms)


def make_near(predictor):
  """Returns the predictor for nodes whose links are all alike."""
  profile = dataclasses.replace(predictor.profile, regions=costs_lib.ALIKE)
  return dataclasses.replace(predictor, profile=profile)


def make_shapes(depths, zones, *, params=1000, outputs=1000, mode="none", count=2, **link):
  """Returns shapes for pipelines of these depths, of a model of equal layers.

  `count` is the number of microbatches of a pipeline.
  """
  layers = [
      profiles.make_layer(f"layer_{i}", parameter_bytes=params, activation_bytes=outputs)
      for i in range(_LAYERS)
  ]
  predictor = predictor_lib.Predictor(
      profiles.make_profile(layers, regions=make_regions(zones, **link)),
      num_microbatches=count * len(depths),
      num_shares=len(depths),
      by_makespan=False,
      redundant=config_lib.RedundancySection(mode),
  )
  partitions = tuple(
      partition_lib.Partition(tuple(s * _LAYERS // depth for s in range(depth + 1)))
      for depth in depths
  )
  return shapes_lib.Templates(partitions, predictor, mixes=True), partitions


class PlacementTest(parameterized.TestCase):

  @parameterized.parameters(("a", ""), ("us/a", "us"), ("us/a|10.0.0.1", "us"), ("x/us/a", "x/us"))
  def test_region_of(self, zone, want):
    placement_lib.check_zone(zone)
    self.assertEqual(placement_lib.region_of(zone), want)

  @parameterized.parameters("/", "/a", "a/", "a//b")
  def test_bad_zones(self, zone):
    with self.assertRaisesRegex(ValueError, f"region/zone such as us/a, got '{zone}'"):
      placement_lib.check_zone(zone)

  @parameterized.named_parameters(*tables.read_rows(_SMALL))
  def test_no_placement_crosses_less_and_no_step_is_shorter(self, text, depths):
    zones, draw, depths = make_zones(text), random.Random(text), [*map(int, depths.split())]
    for mode, latency_ms in itertools.product(("none", "lazy"), (0.0, 50.0)):
      params, outputs = draw.choice(((10, 9000), (9000, 10), (2000, 3000)))
      shapes, partitions = make_shapes(
          depths, zones, params=params, outputs=outputs, mode=mode, latency_ms=latency_ms
      )
      predictor, nodes = shapes.predictor, [*zones]

      def make(order, partitions=partitions, mode=mode):
        return placement_lib.make_pipelines(partitions, order, mode != "none")

      def count_crossing(order, predictor=predictor, partitions=partitions, make=make):
        counts = [2] * len(partitions)
        traffic = predictor.find_traffic(partitions, counts, [p.roles for p in make(order)])
        return traffic.between(traffic.total).sum()

      orders = [*itertools.permutations(nodes, sum(depths))]
      least = min(map(count_crossing, orders))
      by_region = [
          placement_lib.arrange(
              partitions, nodes, zones, has_replicas=mode != "none", regions=regions
          )
          for regions in shapes._divide(partitions, nodes)
      ]
      self.assertAlmostEqual(min(map(count_crossing, by_region)), least)
      step_ms = lambda order, make=make, p=predictor: p.predict(make(order)).total_ms
      chosen = shapes.arrange(partitions, nodes, zones)
      self.assertCountEqual(chosen, nodes)
      self.assertAlmostEqual(step_ms(chosen), min(map(step_ms, orders)), places=3)

  def test_zones_of_a_region_are_spread_as_before(self):
    zones = make_zones("aabbeeff")
    shapes, partitions = make_shapes(
        [4, 4], zones, params=1, outputs=9000, mode="lazy", latency_ms=0.0
    )
    order = shapes.arrange(partitions, [*zones], zones)
    for one in (order[:4], order[4:]):
      self.assertLen({placement_lib.region_of(zones[n]) for n in one}, 1)
      self.assertNotIn(zones[one[0]], (zones[one[1]], zones[one[3]]))

  def test_pipelines_that_follow_others_stay_in_their_region(self):
    zones = make_zones("abef") | {4: "us/a"}
    shapes, partitions = make_shapes([2, 2], zones, params=1, outputs=9000, latency_ms=0.0)
    before = placement_lib.make_pipelines(partitions, [0, 1, 2, 3], False)
    # A spare in another region than that of the lost node takes its place at first.
    for nodes, want in (((0, 1, 2, 3), [{0, 1}, {2, 3}]), ((4, 1, 2, 3), [{4, 1}, {2, 3}])):
      after = shapes.adapt(before, nodes)
      self.assertCountEqual([{*p.nodes} for p in after], want)
    mixed = placement_lib.make_pipelines(partitions, [0, 2, 1, 3], False)
    self.assertCountEqual([{*p.nodes} for p in shapes.adapt(mixed, (0, 1, 2, 3))], [{0, 1}, {2, 3}])

  def test_of_a_newcomer_the_region_is_not_known_yet(self):
    shapes, partitions = make_shapes([2, 2], make_zones("abef"))
    before = placement_lib.make_pipelines(partitions, [0, 2, 1, 3], False)
    nodes = (0, 1, 2, 3, 4)
    self.assertLen(shapes.adapt(before, nodes), 2)
    self.assertCountEqual(shapes.arrange(partitions, nodes, make_zones("abef")), nodes)

  @parameterized.parameters(True, False)
  def test_without_a_trigger_only_nodes_change_places(self, grows):
    link = dict(params=1, outputs=9000, latency_ms=0.0)
    shapes, (partition, _) = make_shapes([2, 2], make_zones("aefb"), **link)
    options = config_lib.RecoverySection(grow=grows, refill=grows)
    shapes = dataclasses.replace(shapes, depths=(partition,), options=options)
    before = placement_lib.make_pipelines((partition,), [0, 1], False)
    after = shapes.adapt(before, (0, 1, 2, 3))
    self.assertEqual([p.partition for p in after], [partition] * (1 + grows))
    for pipeline in after:
      self.assertIn({*pipeline.nodes}, ({0, 3}, {1, 2}))


_FOUR = make_zones("abef")
_REGIONS = make_regions(_FOUR)


class CostsTest(parameterized.TestCase):

  def predict(self, *rows, mode="none", **options):
    shapes, partitions = make_shapes([len(row) for row in rows], _FOUR, mode=mode, **options)
    order = [n for row in rows for n in row]
    made = placement_lib.make_pipelines(partitions, order, mode != "none")
    return shapes.predictor.predict(made)

  def test_phases_that_cross(self):
    # 6 layers of 1000 bytes, 1000 bytes between stages, 50 ms and 1000 bytes per ms.
    near = self.predict((0, 1), mode="lazy")
    cut = self.predict((0, 2), mode="lazy")
    extra = {k: ms - getattr(near, k) for k, ms in vars(cut).items()}
    # Two microbatches in flight: an output and a gradient follow each other.
    self.assertAlmostEqual(extra.pop("compute_ms"), 2 * (50.0 + 1.0), delta=3.0)
    # Each region gets the final gradients of three layers, at the same time.
    self.assertAlmostEqual(extra.pop("refresh_ms"), 50.0 + 3.0)
    self.assertEqual(extra, dict(ties_ms=0, reduce_ms=0, norm_ms=50, vote_ms=50, update_ms=0))
    whole, apart = self.predict((0, 1), (2, 3)), self.predict((0, 2), (1, 3))
    # Three sums after each other, of two trips; half of all gradients cross twice.
    self.assertAlmostEqual(whole.reduce_ms - apart.reduce_ms, 3 * 2 * 50.0 + 6.0)

  def test_one_link_for_all_pipelines(self):
    time = self.predict((0, 2), (1, 3), count=8, latency_ms=0.0, bytes_per_ms=10.0)
    self.assertAlmostEqual(time.compute_ms, 2 * 8 * 1000 / 10.0, delta=1.0)

  def test_a_pipeline_that_crosses_gets_fewer_microbatches(self):
    shapes, partitions = make_shapes([2, 2], make_zones("abaf"), params=0, count=8)
    made = placement_lib.make_pipelines(partitions, [0, 1, 2, 3], False)
    predictor = dataclasses.replace(shapes.predictor, by_makespan=True)
    here, across = predictor.split(made)
    self.assertGreater(here, across)
    self.assertEqual(make_near(predictor).split(made), (8, 8))

  @parameterized.parameters(False, True)
  def test_owed_work_moves_within_a_region(self, is_slow):
    costs = costs_lib.StageCosts((5.0, 5.0), (10.0, 10.0), (0.1,), (1000, 1000))
    costs = dataclasses.replace(costs, regions=_REGIONS if is_slow else costs_lib.ALIKE)
    line = lines_lib.Line((0, 0), range(8), (2, 1))  # Both stages are on one node.
    copies = {0: {0, 1}, 1: {1}, 2: {0}, 3: {1}}
    dealt = dealing.deal([line], costs=costs, copies=copies, share_size=1)
    self.assertGreater(len(dealt), 1)
    crosses = any(_REGIONS.are_several(line.owners) for line in dealt)
    self.assertEqual(crosses, not is_slow)

  def test_copies_come_from_the_same_region_or_take_longer(self):
    near = profiles.make_profile([profiles.make_layer("one", parameter_bytes=5000)])
    far = dataclasses.replace(near, regions=_REGIONS)
    partition = partition_lib.Partition((0, 1))
    one, two, three = (
        placement_lib.make_pipelines([partition] * n, (0, 2, 3)[:n], False) for n in (1, 2, 3)
    )
    for profile, source in ((near, 0), (far, 2)):
      (copy,) = moves.plan_layer_copies(profile, two, three, (0, 2, 3))
      self.assertEqual(copy.source, source)
    extra_secs = moves.copy_secs(far, one, two) - moves.copy_secs(near, one, two)
    self.assertAlmostEqual(1e3 * extra_secs, 50.0 + 5.0)

  def test_new_pipelines_have_no_region(self):
    shapes, partitions = make_shapes([2, 2], make_zones("aeae"))
    predictor = shapes.predictor
    alone = make_near(predictor)
    self.assertEqual(predictor.step_time(partitions, [2, 2]), alone.step_time(partitions, [2, 2]))
    made = placement_lib.make_pipelines(partitions, base.nodes(-4, 0), False)
    self.assertEqual(predictor.predict(made), alone.predict(made))
    self.assertEqual(predictor.describe_crossing(made), "")

  def test_roles_of_one_region_cost_the_same_wherever_they_are(self):
    shapes, partitions = make_shapes([2, 2], make_zones("aeae"))
    roles = failover.Roles.initial((1, 3), has_replicas=False)  # Both in the second region.
    predictor = shapes.predictor
    self.assertEqual(
        predictor.compute_ms(partitions[0], 2, roles), predictor.compute_ms(partitions[0], 2)
    )
