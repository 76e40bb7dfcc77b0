"""Frozen objects are left out of collections, but are not kept for ever."""

import gc
import weakref

from absl.testing import absltest

from bamboo_jax.base import garbage


class _Cycle:

  def __init__(self):
    self.me = self


class GarbageTest(absltest.TestCase):

  def test_what_is_frozen_is_left_alone_until_the_end(self):
    cycle = _Cycle()
    seen = weakref.ref(cycle)
    with garbage.frozen():
      del cycle
      gc.collect()
      self.assertIsNotNone(seen())
    gc.collect()
    self.assertIsNone(seen())
    self.assertEqual(gc.get_freeze_count(), 0)
