"""Placements are compared with all others, survival with all failures."""

import itertools

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies

from bamboo_jax.plan import partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.recovery import placement as placement_lib, survival
from bamboo_jax.schedule import failover
from tests import tables

# Name, zone of each node, stages of each pipeline.
_SMALL = """
two_zones             aabb     2 2
one_zone              aaaa     2 2
uneven                aaaab    4
uneven_two_pipelines  aaaabb   3 3
three_zones           aabbcc   3 3
each_its_own          abcdef   2 4
different_depths      aaabbc   4 2
single_nodes          aabb     1 1 1
spares                aaabbcc  2 2
odd_circle            aabbb    5
three_pipelines       aaabbc   2 2 2
"""


def _even(num_stages):
  return partition_lib.Partition(tuple(range(num_stages + 1)))


def _zones(text):
  return dict(enumerate(text))


def _survives(pipelines, lost):
  """Returns whether a copy of every layer is left."""
  left = set()
  for pipeline in pipelines:
    for stage, owner in enumerate(pipeline.roles.owners):
      if {owner, pipeline.roles.shadows.get(stage, owner)} - lost:
        left |= {*pipeline.partition.layers(stage)}
  return len(left) == pipelines[0].partition.num_layers


def _fail_over(pipelines, lost):
  """Returns whether shadows alone make up for the loss."""
  return not any(failover.fail_over(pipeline.roles, lost)[1] for pipeline in pipelines)


def _most(items, survives):
  """Returns how many of `items` may fail, whichever they are."""
  for n in range(1, len(items) + 1):
    if not all(map(survives, itertools.combinations(items, n))):
      return n - 1
  return len(items)


class SurvivalTest(parameterized.TestCase):

  @hypothesis.settings(max_examples=60)
  @hypothesis.given(
      strategies.lists(strategies.integers(1, 4), min_size=1, max_size=2),
      strategies.text("abc", min_size=8, max_size=8),
      strategies.booleans(),
  )
  def test_counts_what_all_failures_show(self, depths, text, has_replicas):
    zones = _zones(text)
    partitions = [partition_lib.Partition((*range(depth), 4)) for depth in depths]
    pipelines = placement_lib.make_pipelines(partitions, range(8), has_replicas)
    nodes = [n for p in pipelines for n in p.nodes]
    got = survival.find_survival(pipelines, zones)

    def in_zones(failed):
      return {n for n in zones if zones[n] in failed}

    alive = [z for z in sorted({*text}) if _survives(pipelines, in_zones({z}))]
    self.assertEqual(list(got.zones), alive)
    self.assertCountEqual((*got.zones, *got.fatal_zones), {*text})
    if has_replicas:
      self.assertEqual(
          list(got.shadow_zones), [z for z in alive if _fail_over(pipelines, in_zones({z}))]
      )
    used = sorted({zones[n] for n in nodes})
    most = _most(used, lambda failed: _survives(pipelines, in_zones(failed)))
    self.assertEqual(got.num_zones, most)
    self.assertEqual(got.num_nodes, _most(nodes, lambda lost: _survives(pipelines, {*lost})))

  def test_vacant_stages_and_lost_shadows_have_no_copy(self):
    pipelines = [
        pipelines_lib.Pipeline(_even(2), failover.Roles((0, 1), {}), vacant=frozenset({1})),
        pipelines_lib.Pipeline(_even(2), failover.Roles((2, 3), {0: 3})),
    ]
    got = survival.find_survival(pipelines, _zones("abbc"))
    self.assertEqual(got.num_nodes, 0)
    self.assertEqual((got.zones, got.shadow_zones), (("a", "b"), ("b",)))
    self.assertEqual(got.fatal_zones, ("c",))

  @parameterized.parameters(
      (
          dict(zones="abc", shadow_zones="abc", num_zones=2, num_nodes=3),
          "Any two zones or any three nodes may fail. "
          "If zone a, b or c fails, shadows take over at once.",
      ),
      (
          dict(zones="b", fatal_zones="a", shadow_zones="b", num_nodes=1),
          "Zone b or any one node may fail. If zone a fails, a checkpoint is needed. "
          "If zone b fails, shadows take over at once.",
      ),
      (dict(zones="ab", num_zones=1, num_nodes=12), "Any one zone or any 12 nodes may fail."),
      (dict(zones="a", num_nodes=1), "Any one node may fail."),
      (
          dict(fatal_zones="a"),
          "Some layers have one copy only: if its node fails, a checkpoint is needed.",
      ),
  )
  def test_render(self, fields, expected):
    empty = dict(zones="", fatal_zones="", shadow_zones="", num_zones=0, num_nodes=0)
    self.assertEqual(survival.Survival(**empty | fields).render(), expected)

  def test_endings_of_three_nodes_and_two_segments(self):
    pairs = [*itertools.product(range(3), range(2))]
    for held, leaving in itertools.product(
        itertools.product([False, True], repeat=6), itertools.product([False, True], repeat=3)
    ):
      copies = [*itertools.compress(pairs, held)]
      gone = {*itertools.compress(range(3), leaving)}
      nodes = [{n for n, segment in copies if segment == wanted} for wanted in (0, 1)]
      want = tuple(segment for segment in (0, 1) if nodes[segment] and nodes[segment] <= gone)
      self.assertEqual(survival.find_ending(iter(copies), gone), want, (copies, gone))

  def test_nodes_without_zone_are_apart(self):
    pipelines = placement_lib.make_pipelines([_even(2)], [4, 7], True)
    got = survival.find_survival(pipelines, {})
    self.assertEqual(got.zones, ("node 4", "node 7"))
    self.assertEqual(got.num_zones, 1)


def _survives_by_force(zones, partitions, has_replicas):
  num_places = sum(p.num_stages for p in partitions)
  return max(
      _survives_of(placement_lib.make_pipelines(partitions, nodes, has_replicas), zones)
      for nodes in itertools.permutations(zones, num_places)
  )


def _survives_of(pipelines, zones):
  got = survival.find_survival(pipelines, zones)
  return len(got.zones), got.num_zones, got.num_nodes


class PlacementTest(parameterized.TestCase):

  @parameterized.named_parameters(*tables.read_rows(_SMALL))
  def test_no_other_survives_more_zones_and_nodes(self, text, depths):
    for has_replicas in (True, False):
      partitions = [partition_lib.Partition((*range(int(depth)), 5)) for depth in depths.split()]
      zones = _zones(text)
      nodes = placement_lib.arrange(partitions, range(len(text)), zones, has_replicas=has_replicas)
      self.assertCountEqual(nodes, zones)
      pipelines = placement_lib.make_pipelines(partitions, nodes, has_replicas)
      want = _survives_by_force(zones, partitions, has_replicas)
      self.assertEqual(_survives_of(pipelines, zones), want)

  @parameterized.named_parameters(
      # Zones, pipelines, stages, the zones and nodes that may fail, zones after which
      # shadows suffice, and neighbours that are apart.
      ("eight_in_two", "aaaabbbb", 2, 4, (2, 1, 3), 2, 8),
      ("eight_in_three", "aaabbbcc", 2, 4, (3, 2, 3), 3, 8),
      ("forty_eight_in_three", "abc" * 16, 4, 12, (3, 2, 7), 3, 48),
      ("two_hundred_in_four", "abcd" * 50, 10, 20, (4, 3, 19), 4, 200),
      ("one_is_large", "a" * 14 + "b" * 6 + "c" * 4, 2, 12, (3, 1, 3), 2, 20),
      ("half_are_in_one", "a" * 12 + "b" * 6 + "c" * 6, 3, 8, (3, 2, 5), 2, 23),
  )
  def test_large_clusters(self, text, num, depth, survives, num_shadowed, num_apart):
    zones, partitions = _zones(text), [_even(depth)] * num
    nodes = placement_lib.arrange(partitions, range(len(text)), zones, has_replicas=True)
    pipelines = placement_lib.make_pipelines(partitions, nodes, True)
    self.assertEqual(_survives_of(pipelines, zones), survives)
    self.assertLen(survival.find_survival(pipelines, zones).shadow_zones, num_shadowed)
    pairs = [(p.roles.owners[s], n) for p in pipelines for s, n in p.roles.shadows.items()]
    self.assertEqual(sum(zones[owner] != zones[shadow] for owner, shadow in pairs), num_apart)

  @parameterized.named_parameters(
      ("one_zone", "aaaa", [0, 1, 2, 3]),
      ("no_zone", "", [0, 1, 2, 3]),
      ("first_nodes_first", "aab", [0, 2, 1]),
      ("two", "aabb", [0, 2, 1, 3]),
  )
  def test_nodes_stay_in_order(self, text, want):
    zones = _zones(text)
    partitions = [_even(2)] * (len(want) // 2)
    nodes = placement_lib.arrange(partitions, range(len(want)), zones, has_replicas=True)
    self.assertEqual([*nodes], want)

  @parameterized.parameters(
      # Of one zone, and of two.
      (["z|a", "z|a", "z|b", "z|b"],),
      (["y|a", "y|a", "y|b", "y|b", "z|c", "z|c", "z|d", "z|d"],),
  )
  def test_copies_are_spread_over_hosts(self, labels):
    zones, num = dict(enumerate(labels)), len(labels) // 2
    for has_replicas in (True, False):
      partitions = [_even(2)] * num
      nodes = placement_lib.arrange(partitions, range(2 * num), zones, has_replicas=has_replicas)
      pipelines = placement_lib.make_pipelines(partitions, nodes, has_replicas)
      where = [[zones[n].split("|") for n in p.nodes] for p in pipelines]
      if has_replicas:
        for (zone, host), (other, another) in where:
          self.assertNotEqual(host, another)
          self.assertEqual(zone == other, num == 2)
      else:
        owners = [{host for _, host in stage} for stage in zip(*where, strict=True)]
        self.assertEqual([len(hosts) for hosts in owners], [num, num])
