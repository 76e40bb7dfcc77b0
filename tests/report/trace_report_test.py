import dataclasses

from absl.testing import parameterized

from bamboo_jax.report import trace_report
from bamboo_jax.traces import readers
from tests import figures

_TRACE = readers.parse_trace("0,add,a\n0,add,b\n9,remove,a\n9,remove,b", source="a")
_QUIET = readers.parse_trace("# duration_ms=9\n0,add,a", source="b")


class TraceReportTest(parameterized.TestCase):

  @parameterized.parameters((_TRACE, [(2, 1)]), (_QUIET, []))
  def test_figure(self, trace, bulks):
    named = dataclasses.replace(trace, name="some/folder/a $b$.csv")
    fig = trace_report.draw(named)
    self.assertEmpty(figures.find_faults(fig))
    over_time, by_size = fig.axes
    self.assertEqual(over_time.get_title(loc="left"), r"a \$b\$.csv")
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in by_size.patches]
    self.assertEqual(bars, bulks)
    ticks = by_size.get_xticks()
    self.assertTrue(all(tick == round(tick) for tick in ticks), ticks)
