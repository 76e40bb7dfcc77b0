"""How models are cut into units."""

from absl.testing import parameterized

from bamboo_jax.models import units

NAMES = ("embed", "b0.attention", "b0.mlp", "b1.attention", "b1.mlp", "head")


class UnitsTest(parameterized.TestCase):

  def test_cuts(self):
    self.assertEqual(units.find_cuts(NAMES), (1, 3, 5))

  def test_blocks_of_other_names(self):
    names = ("a", "b", "c.x", "c.y", "d.x", "c.x.1", "c.x.2")
    self.assertEqual(units.find_cuts(names), (1, 2, 4, 5))

  @parameterized.parameters(
      (0, 6, ((0, 1), (1, 3), (3, 5), (5, 6))), (1, 5, ((1, 3), (3, 5))), (1, 3, ((1, 3),))
  )
  def test_split(self, first, last, bounds):
    self.assertEqual(units.split(NAMES, first, last), tuple(range(*pair) for pair in bounds))

  @parameterized.parameters((2, 6), (0, 2))
  def test_inside_a_unit(self, first, last):
    with self.assertRaisesRegex(ValueError, "'b0.mlp'.* together with 'b0.attention'"):
      units.split(NAMES, first, last)
