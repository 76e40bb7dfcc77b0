"""Which nodes meet before they need each other."""

import collections

from absl.testing import absltest
import jax

from bamboo_jax.runtime.spmd.processes import preconnect
from bamboo_jax.runtime.spmd.processes import transfer_log


class ChooseGroupsTest(absltest.TestCase):

  def test_all_are_chosen_if_they_fit(self):
    later = [(0, 1), (1, 2), (0, 1, 2)]
    found = preconnect.choose_groups([(0, 1)], later, most=4)
    self.assertEqual(found, {(1, 2), (0, 1, 2)})

  def test_no_node_has_more_sockets_than_it_may(self):
    """A sum of 32 pipelines, and one after each of their deaths."""
    now = [tuple(range(32))]
    later = [(*range(i), 32 + i, *range(i + 1, 32)) for i in range(32)]
    found = preconnect.choose_groups(now, later, most=100)
    counts = collections.Counter(n for g in found for n in g for _ in g[1:])
    self.assertLessEqual(max(counts.values()) + 31, 100)
    self.assertLen(found, 2)

  def test_small_groups_come_first(self):
    later = [(0, 1, 2), (0, 3)]
    found = preconnect.choose_groups([], later, most=2)
    self.assertEqual(found, {(0, 3)})


class PreconnectionsTest(absltest.TestCase):

  def test_meetings_with_the_dead_are_dropped(self):
    devices = dict(enumerate(jax.devices()))
    made = preconnect.Preconnections(devices, transfer_log.TransferLog())
    kept, dropped = made.compile((0, 1)), made.compile((0, 2))
    made.keep({0, 1, 3})
    self.assertIs(made.compile((0, 1)), kept)
    self.assertIsNot(made.compile((0, 2)), dropped)
