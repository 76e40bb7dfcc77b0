"""Formats of figures, and legends that fit."""

from absl.testing import parameterized

from bamboo_jax.metrics import plots
from tests import figures, folders


# Drawing takes a few tenths of a second, and matplotlib lists the machine's
# fonts when it is imported for the first time, which takes seconds.
class PlotsTest(folders.FolderCase):

  @parameterized.parameters(
      ("png", ("png",)), ("png,pdf,svg", ("png", "pdf", "svg")), (" svg , png", ("svg", "png"))
  )
  def test_formats(self, text, formats):
    self.assertEqual(plots.parse_formats(text), formats)

  @parameterized.parameters("", "gif", "png,", "png,png", "PNG", "png pdf")
  def test_bad_formats(self, text):
    with self.assertRaisesRegex(ValueError, f"a list of png, pdf, svg, .*got '{text}'"):
      plots.parse_formats(text)

  def test_files_are_alike_and_in_their_formats(self):
    contents = []
    for name in ("a", "b"):
      fig, [[axes]] = plots.new_figure((3, 2))
      axes.set_xlabel("step")
      axes.plot([1, 2], [3, 4])
      paths = plots.save_figure(fig, self.folder / f"{name}.png", plots.FORMATS)
      contents.append([path.read_bytes() for path in paths])
    self.assertEqual([p.name for p in paths], ["b.png", "b.pdf", "b.svg"])
    self.assertEqual(*contents)
    png, pdf, svg = contents[0]
    self.assertStartsWith(png, b"\x89PNG")
    self.assertStartsWith(pdf, b"%PDF")
    self.assertIn(b"/CIDFontType2", pdf)  # Text stays text.
    self.assertIn(b"<svg", svg)

  @parameterized.parameters((2, 1, 1), (8, 2, 1), (9, 9, 2), (9, 60, 9))
  def test_a_legend_is_as_wide_as_fits(self, num_entries, length, num_rows):
    from matplotlib import patches

    fig, _ = plots.new_figure((8, 4))
    plots.add_legend(fig, [patches.Patch(label="x" * length) for _ in range(num_entries)])
    self.assertEmpty(figures.find_faults(fig))
    (legend,) = fig.legends
    heights = [t.get_window_extent().y0 for t in legend.texts]
    rows = [heights.count(y) for y in {*heights}]
    self.assertLen(rows, num_rows)
    self.assertLessEqual(max(rows) - min(rows), 1)
