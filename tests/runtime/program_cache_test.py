"""Sums: one program for all orders of shares, and few of them alive."""

import dataclasses
import gc
from unittest import mock
import weakref

from absl.testing import absltest
import jax
import numpy as np

from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.stage import spec as spec_lib
from tests.runtime import engine_test as engines


class SumsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    whole = engines.make_whole()
    (self.unit,) = dataclasses.replace(whole, last=1, unit="layer").units
    self.enterContext(mock.patch.object(program_cache, "_MAX_SUMS", 2))
    self.cache = program_cache.ProgramCache()

  def add(self, *holders):
    """Sums one share of each device; returns the program that did."""
    devices = [jax.devices()[number] for number in holders]
    like = spec_lib.to_unit(self.unit.accumulator, self.unit)
    ones = jax.tree.map(lambda a: np.ones(a.shape, a.dtype), like)
    total = self.cache.get_sum(self.unit, devices)
    held = {i: jax.device_put(ones, d) for i, d in enumerate(devices)}
    for leaf in jax.tree.leaves(total(held)[devices[0]]):
      np.testing.assert_array_equal(leaf, len(holders))
    return total.program

  def test_another_order_is_no_other_program(self):
    self.assertIs(self.add(0, 1), self.add(1, 0))

  def test_a_program_goes_once_two_others_were_used(self):
    first, second = weakref.ref(self.add(0, 1)), weakref.ref(self.add(0, 2))
    self.add(0, 1)
    self.add(0, 3)
    gc.collect()
    self.assertIsNotNone(first())
    self.assertIsNone(second())

  def test_executables_go_too(self):
    live = lambda: len(jax.devices()[0].client.live_executables())
    self.add(0, 1)
    self.add(0, 2)
    gc.collect()
    before = live()
    self.add(0, 3)
    self.add(1, 2)
    gc.collect()
    self.assertLessEqual(live(), before)
