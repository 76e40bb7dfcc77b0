"""Shares are summed left to right, wherever they lie."""

from unittest import mock

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax.runtime.phases import reduce
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.runtime.wire import ordered_sum
from tests.runtime import engine_test as engines

CACHE = programs_lib.ProgramCache()


def make_shares(num_shares, like):
  # Of very different sizes, so that another order of the sum gives other bits.
  rng = np.random.default_rng(0)
  make = lambda a, k: (10.0 ** (3 * k) * rng.standard_normal(a.shape)).astype(np.float32)
  return [jax.tree.map(lambda a, k=k: make(a, k), like) for k in range(num_shares)]


class ReduceTest(parameterized.TestCase):

  @parameterized.parameters(
      ([0],),
      ([0, 0, 0],),
      ([3, 1, 2],),
      ([0, 1, 1, 2],),
      ([1, 0, 1, 0],),
      ([7, 6, 5, 4, 3, 2, 1, 0],),
      ([1], [2, 3]),
      ([0, 2], [1]),
  )
  def test_bits_are_those_of_a_left_to_right_sum(self, holders, idle=()):
    (spec,) = engines.cut(1)
    nodes = [*dict.fromkeys(holders), *idle]
    owners, num_shares = [(node,) for node in nodes], max(len(holders), len(nodes))
    engine = engines.build([spec], owners, num_shares=num_shares, cache=CACHE)
    like = {unit.first: unit.accumulator for unit in spec.units}
    shares = make_shares(len(holders), like)
    lines = [((node,), [i for i, h in enumerate(holders) if h == node]) for node in nodes]
    engine.set_pipelines(engine.roles, lines)
    for i, node in enumerate(holders):
      place = engine.nodes[node].device
      for unit, share in jax.device_put(shares[i], place).items():
        engine.nodes[node].store.accumulators[unit, i] = share
    reduce.reduce(engine)
    want = shares[0]
    for share in shares[1:]:
      want = jax.tree.map(np.add, want, share)
    self.assertCountEqual(engine.nodes, nodes)
    for number, node in engine.nodes.items():
      self.assertEqual(node.store.totals.keys(), like.keys())
      for unit, total in node.store.totals.items():
        self.assertEqual({a.device for a in jax.tree.leaves(total)}, {jax.devices()[number]})
        jax.tree.map(np.testing.assert_array_equal, total, want[unit])
      # The step may have to sum again.
      self.assertFalse(any(a.is_deleted() for a in node.store.arrays()))

  def test_units_take_the_devices_in_turn(self):
    (spec,) = engines.cut(1)
    engine = engines.build([spec], [(0,), (1,)])
    for i, node in engine.nodes.items():
      for unit in spec.units:
        zero = jax.device_put(spec_lib.zero_accumulator(unit), node.device)
        node.store.accumulators[unit.first, i] = zero
    with mock.patch.object(ordered_sum, "add", wraps=ordered_sum.add) as add:
      reduce.reduce(engine)
    used = [jax.tree.leaves(call.args)[0].device for call in add.mock_calls]
    self.assertEqual(used, [jax.devices()[i % 2] for i in range(len(spec.units))])
