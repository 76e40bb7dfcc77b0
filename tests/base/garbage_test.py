"""Frozen objects are left out of collections, but are not kept for ever."""

import gc
import weakref

from absl.testing import absltest

from bamboo_jax.base import garbage


class _Cycle:

  def __init__(self):
    self.me = self


class GarbageTest(absltest.TestCase):

  def test_what_is_frozen_is_looked_at_when_all_is_collected(self):
    cycle = _Cycle()
    seen = weakref.ref(cycle)
    with garbage.frozen():
      del cycle
      gc.collect()
      self.assertIsNotNone(seen())
      garbage.collect_all()
      self.assertIsNone(seen())
      self.assertGreater(gc.get_freeze_count(), 0)
    self.assertEqual(gc.get_freeze_count(), 0)

  def test_nothing_is_frozen_by_a_collection(self):
    garbage.collect_all()
    self.assertEqual(gc.get_freeze_count(), 0)
