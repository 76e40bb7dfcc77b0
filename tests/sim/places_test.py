"""Placements of published systems."""

import collections

from absl.testing import parameterized

from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.sim import places as places_lib

_PARTITION = partition_lib.Partition((0, 1, 2, 3, 4))


class PlacesTest(parameterized.TestCase):

  def zones(self, method):
    zones = {n: f"zone{n % 2}" for n in range(8)}
    placer = places_lib.Placer(method, has_replicas=True)
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
