import dataclasses
import pathlib
import tempfile

from absl.testing import absltest

from bamboo_jax.report import trace_report
from bamboo_jax.traces import readers
from tests import figures

_TRACE = readers.parse_trace("0,add,a\n0,add,b\n9,remove,a\n9,remove,b", source="a")
_QUIET = readers.parse_trace("# duration_ms=9\n0,add,a", source="b")


class TraceReportTest(absltest.TestCase):

  def test_figure(self):
    named = dataclasses.replace(_TRACE, name="some/folder/a $b$.csv")
    fig = trace_report.draw_traces([named, _QUIET])
    self.assertEmpty(figures.find_faults(fig))
    titles = [axes.get_title(loc="left") for axes in fig.axes]
    self.assertEqual(titles, [r"a \$b\$.csv", "", "b", ""])
    ticks = fig.axes[3].get_xticks()
    self.assertTrue(all(tick == round(tick) for tick in ticks), ticks)

  def test_each_trace_has_a_row(self):
    from matplotlib import image

    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, "trace.png")
    heights = []
    for traces in ([_QUIET], [_TRACE], [_TRACE, _QUIET]):
      trace_report.plot_traces(path, traces)
      pixels = 255 * image.imread(path)[..., :3]
      heights.append(pixels.shape[0])
      bars = abs(pixels - (213, 94, 0)).max(axis=-1) < 3
      # A bar of the histogram; the legend is a few pixels.
      self.assertEqual(bars.sum() > 1000, _TRACE in traces)
    self.assertEqual(heights[0], heights[1])
    self.assertGreater(heights[2], heights[1])
