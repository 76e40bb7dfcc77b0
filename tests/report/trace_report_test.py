import contextlib
import dataclasses
import io
import pathlib
import tempfile

from absl.testing import absltest

from bamboo_jax.report import trace_report
from bamboo_jax.traces import readers
from tests import figures

_TRACE = readers.parse_events("0,add,a\n0,add,b\n9,remove,a\n9,remove,b", source="a")
_QUIET = readers.parse_events("# duration_ms=9\n0,add,a", source="b")

_LONG = readers.parse_events(
    "# duration_ms=36000000\n0,add,a\n0,add,b\n9000000,remove,a", source="c"
)


class TraceReportTest(absltest.TestCase):

  def test_figure(self):
    named = dataclasses.replace(_TRACE, name="some/folder/a $b$.csv")
    fig = trace_report.draw_traces([named, _QUIET])
    self.assertEmpty(figures.find_faults(fig))
    titles = [axes.get_title(loc="left") for axes in fig.axes]
    self.assertEqual(titles, [r"a \$b\$.csv", "", "b", ""])
    ticks = fig.axes[3].get_xticks()
    self.assertTrue(all(tick == round(tick) for tick in ticks), ticks)

  def test_a_single_generated_trace_has_no_range(self):
    for seeds, has_range in (([0], False), ([0, 1], True)):
      with contextlib.redirect_stdout(io.StringIO()) as out:
        trace_report.fit(_LONG, seeds, figure=None)
      line = out.getvalue().splitlines()[1]
      self.assertEqual(" to " in line, has_range, line)

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
