import pathlib
import tempfile

from absl.testing import absltest

from bamboo_jax.metrics import trace_plot

_CURVE = trace_plot.Curve("a", (0.0, 1.0, 2.0), (4, 2, 3), (0, 2, 0), 3.0)
_QUIET = trace_plot.Curve("b", (0.0,), (4,), (0,), 3.0)


class TracePlotTest(absltest.TestCase):

  def test_each_curve_has_a_row(self):
    from matplotlib import image

    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, "trace.png")
    heights = []
    for curves in ([_QUIET], [_CURVE], [_CURVE, _QUIET]):
      trace_plot.plot_traces(path, curves)
      pixels = 255 * image.imread(path)[..., :3]
      heights.append(pixels.shape[0])
      bars = abs(pixels - (213, 94, 0)).max(axis=-1) < 3
      # A bar of the histogram; the legend is a few pixels.
      self.assertEqual(bars.sum() > 1000, _CURVE in curves)
    self.assertEqual(heights[0], heights[1])
    self.assertGreater(heights[2], heights[1])
