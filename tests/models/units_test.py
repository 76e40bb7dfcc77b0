"""How models are cut into units."""

from absl.testing import parameterized

from bamboo_jax.models import units

NAMES = ("embed", "b0.attention", "b0.mlp", "b1.attention", "b1.mlp", "head")


class UnitsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("block", (1, 3, 5)), ("layer", (1, 2, 3, 4, 5)), ("stage", (1, 2, 3, 4, 5))
  )
  def test_cuts(self, unit, cuts):
    self.assertEqual(units.find_cuts(NAMES, unit), cuts)

  def test_blocks_of_other_names(self):
    names = ("a", "b", "c.x", "c.y", "d.x", "c.x.1", "c.x.2")
    self.assertEqual(units.find_cuts(names, "block"), (1, 2, 4, 5))

  @parameterized.parameters(
      ("block", 0, 6, ((0, 1), (1, 3), (3, 5), (5, 6))),
      ("block", 1, 5, ((1, 3), (3, 5))),
      ("layer", 1, 4, ((1, 2), (2, 3), (3, 4))),
      ("stage", 1, 4, ((1, 4),)),
  )
  def test_split(self, unit, first, last, bounds):
    self.assertEqual(units.split(NAMES, first, last, unit), tuple(range(*pair) for pair in bounds))

  @parameterized.parameters((2, 6), (0, 2))
  def test_inside_a_unit(self, first, last):
    with self.assertRaisesRegex(ValueError, "'b0.mlp'.*unit='block'.*'b0.attention'"):
      units.split(NAMES, first, last, "block")

  def test_unknown(self):
    with self.assertRaisesRegex(ValueError, "did you mean 'layer'"):
      units.find_cuts(NAMES, "layr")
