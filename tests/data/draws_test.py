import itertools

from absl.testing import parameterized
import numpy as np

from bamboo_jax.data import draws


class DrawsTest(parameterized.TestCase):

  def test_frozen(self):
    # If these change, then so does the data of every run.
    self.assertEqual(
        draws.raw_bits(1, 2, count=2).tolist(), [5705853004827290377, 6584680345644299050]
    )
    self.assertEqual(draws.permutation(1, 2, size=8).tolist(), [4, 2, 0, 6, 1, 5, 7, 3])
    self.assertEqual(
        draws.shuffle(1, range(4), size=1 << 40),
        [1062895921437, 148631446745, 905556332465, 82057749037],
    )

  @parameterized.parameters(1, 2, 3, 7, 16, 1000, 1025, 65_537)
  def test_an_order_has_every_number_once(self, size):
    for epoch in (0, 3):
      order = draws.permute(5, epoch, np.arange(size), size=size)
      self.assertEqual(sorted(order.tolist()), list(range(size)))

  def test_orders_differ_and_are_random(self):
    places = np.arange(10_007)
    orders = [places, *(draws.permute(s, e, places, size=10_007) for s in (0, 1) for e in (0, 1))]
    for one, other in itertools.combinations(orders, 2):
      # Correlations of random orders have a standard deviation of 0.01.
      self.assertLess(abs(np.corrcoef(one, other)[0, 1]), 0.04)

  @parameterized.parameters(100, (1 << 20) + 1)
  def test_shuffle_depends_on_the_index_alone(self, size):
    indices = [3, size - 1, size, 2 * size + 3, 3, 7 * size]
    together = draws.shuffle(9, indices, size=size)
    alone = [draws.shuffle(9, [i], size=size)[0] for i in indices]
    self.assertEqual(together, alone)
    self.assertEqual(together[0], together[4])
    self.assertNotEqual(together[0], together[3])
    self.assertEqual(draws.shuffle(9, [], size=size), [])
