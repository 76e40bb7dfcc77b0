"""Which links a process has, and which no more."""

import types

from absl.testing import absltest
import jax
import numpy as np

from bamboo_jax.runtime.spmd.processes import preconnect as preconnect_lib
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.runtime.wire import links as links_lib
from bamboo_jax.schedule import channel as channel_lib

LIKE = jax.ShapeDtypeStruct((2, 3), np.float32)


def channel(*nodes):
  return channel_lib.Channel("activation", nodes, (0,))


class LinksTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.devices = dict(enumerate(jax.devices()))
    self.log = transfer_log.TransferLog()
    self.links = links_lib.Links(
        specs=[types.SimpleNamespace(outputs=LIKE)],
        devices=self.devices,
        kind="ppermute",
        refresh="gradient",
        log=self.log,
        find_compute=lambda node: None,
    )

  def test_those_with_the_dead_are_dropped(self):
    kept, dropped = channel(0, 1), channel(2, 0)
    link, other = self.links.get(kept), self.links.get(dropped)
    self.links.drain({0, 1})
    self.assertIs(self.links.get(kept), link)
    self.assertIsNot(self.links.get(dropped), other)

  def test_they_share_what_is_put_in_where_nothing_is_sent(self):
    one, other = self.links.get(channel(0, 1)), self.links.get(channel(2, 1))
    self.assertIs(one._filler, other._filler)

  def test_meetings_with_the_dead_are_dropped(self):
    made = preconnect_lib.Preconnections(self.devices, self.log)
    kept, dropped = made.compile((0, 1)), made.compile((0, 2))
    made.keep({0, 1, 3})
    self.assertIs(made.compile((0, 1)), kept)
    self.assertIsNot(made.compile((0, 2)), dropped)
