"""The colours of pages and figures can be told apart."""

import itertools

from absl.testing import parameterized

from bamboo_jax.metrics import palette

_DARK_GROUND = "#1D2327"  # Of the cards of a page.


class PaletteTest(parameterized.TestCase):

  @parameterized.parameters(
      ("#000000", "#FFFFFF", 21.0), ("#777777", "#777777", 1.0), ("#0072B2", "#FFFFFF", 5.19)
  )
  def test_contrast(self, one, other, expected):
    self.assertAlmostEqual(palette.contrast(one, other), expected, places=2)
    self.assertAlmostEqual(palette.contrast(other, one), expected, places=2)

  def test_neighbours_differ_on_a_dark_ground(self):
    passes = [s.dark for s in palette.PASSES.values()][:4]  # A row has them in any order.
    kinds = [s.dark for s in palette.KINDS.values()]  # A bar has them in this order.
    pairs = [*itertools.combinations(passes, 2), *itertools.pairwise(kinds)]
    for one, other in pairs:
      self.assertGreaterEqual(palette.contrast(one, other), 1.5, (one, other))

  def test_all_differ_from_their_ground(self):
    shades = [*palette.PASSES.values(), *palette.KINDS.values(), *palette.ZONES]
    for shade in shades:
      self.assertGreaterEqual(palette.contrast(shade.light, "#FFFFFF"), 1.5, shade)
      self.assertGreaterEqual(palette.contrast(shade.dark, _DARK_GROUND), 1.5, shade)
    self.assertLen({*palette.ZONES}, len(palette.ZONES))

  @parameterized.parameters(("#0072B2", "white"), ("#56B4E9", "black"), ("#5F4690", "white"))
  def test_text_is_legible_on(self, ground, expected):
    self.assertEqual(palette.ink(ground), expected)

  def test_css_has_both_grounds(self):
    css = palette.render_css()
    light, dark = css.split("@media (prefers-color-scheme: dark)")
    self.assertIn("--pass-forward: #56B4E9;", light)
    self.assertIn("--kind-idle: #98A2AA;", dark)
    self.assertIn("--zone-6: #9AD4F5;", dark)
