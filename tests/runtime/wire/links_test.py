"""Which links a process has, and which no more."""

import types

from absl.testing import absltest, parameterized
import jax
import numpy as np

from bamboo_jax.runtime.wire import links as links_lib
from bamboo_jax.schedule import channel as channel_lib

LIKE = jax.ShapeDtypeStruct((2, 3), np.float32)


def channel(*nodes):
  return channel_lib.Channel("activation", nodes, (0,))


def make_links(exchange=None):
  return links_lib.Links(
      specs=[types.SimpleNamespace(outputs=LIKE, model=types.SimpleNamespace(name="m"))],
      units={},
      refresh="gradient",
      exchange=exchange,
      find_compute=lambda node: None,
  )


class LinksTest(parameterized.TestCase):

  @parameterized.parameters(
      (None, (0, 1), links_lib.LocalLink),
      (object(), (0, 1), links_lib.SocketLink),
      (object(), (1, 1), links_lib.LocalLink),
  )
  def test_kind(self, exchange, nodes, kind):
    self.assertIsInstance(make_links(exchange).get(channel(*nodes)), kind)

  def test_links_with_the_dead_are_dropped(self):
    links = make_links()
    kept, dropped = channel(0, 1), channel(2, 0)
    link, other = links.get(kept), links.get(dropped)
    links.drain({0, 1})
    self.assertIs(links.get(kept), link)
    self.assertIsNot(links.get(dropped), other)


if __name__ == "__main__":
  absltest.main()
