"""The sum between processes has the bits of the sum in one."""

import functools
import operator
import random
from unittest import mock

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.schedule import channel as channel_lib
from tests.runtime.wire import transport_test


def make_share(seed, sizes):
  """Returns terms of very different size, some of them denormal."""
  rng = np.random.default_rng(seed)
  scale = np.float32(10.0 ** (seed % 4))
  tree = {}
  for name, shape in sizes.items():
    array = rng.standard_normal(shape, np.float32) * scale
    flat = array.reshape(-1)
    flat[::7] *= np.float32(1e-39)
    flat[1::7] = -0.0
    tree[name] = array
  return tree


def add_in_one_process(shares):
  add = jax.jit(lambda a, b: jax.tree.map(operator.add, a, b))
  return functools.reduce(add, jax.device_put(shares, jax.devices()[0]))


class OrderedSumTest(parameterized.TestCase):

  @parameterized.parameters(
      ([0, 1], (), 1),
      ([1, 0, 1, 1, 0], (), 17),
      ([2, 0, 0, 1, 0, 2], (), 262_147),
      ([0, 0, 2], (1, 3), 4099),
      ([3, 1, 1, 0, 2, 2, 2, 3], (), 700_001),
      ([1], (0,), 33),
      ([0, 1, 1], (2,), 100, 16),  # Several pieces for each node.
      ([2, 0, 1, 0], (), 60, 5),  # One node has more pieces than others.
      ([0, 1, 1], (2,), None),  # A frozen unit: nothing is added.
  )
  def test_bits(self, holders, others, size, piece=ordered_sum._PIECE):
    self.enter_context(mock.patch.object(ordered_sum, "_PIECE", piece))
    sizes = {"w": (size,), "b": (3, 5), "one": (1,)} if size else {}
    shares = [make_share(seed, sizes) for seed in range(len(holders))]
    wanted = jax.tree.map(np.asarray, add_in_one_process(shares))
    count = max(*holders, *others, 1) + 1
    # Large shares are more than may be queued.
    transports = transport_test.make_transports(self, count, queued_bytes=1 << 19)
    got = {}

    def run(me):
      held = {i: shares[i] for i, node in enumerate(holders) if node == me}
      for turn in range(2):
        channel = channel_lib.Channel("sum", (*holders, *others), (turn,))
        got[me] = ordered_sum.ordered_sum(
            transports[me], channel, held, num_shares=len(holders), like=shares[0]
        )

    def cut(stop):
      rng = random.Random(0)
      while not stop.wait(0.02):
        transport_test.cut_all(rng.choice(transports))

    transport_test.run_all([functools.partial(run, me) for me in {*holders, *others}], cut)
    for total in got.values():
      jax.tree.map(lambda a, b: self.assertEqual(a.tobytes(), b.tobytes()), total, wanted)

  @parameterized.parameters((0, 3), (5, 2), (10, 4), (1, 1))
  def test_slices_cover_all(self, size, count):
    found = ordered_sum.cut(np.arange(size), range(count))
    self.assertEqual([*found], [*range(count)])
    every = [number for own in found.values() for piece in own for number in piece]
    self.assertEqual(every, [*range(size)])
    widths = [sum(map(len, own)) for own in found.values()]
    self.assertLessEqual(max(widths) - min(widths), 1)
