"""The figures of a trace."""

from absl.testing import parameterized

from bamboo_jax.traces import readers, summary as trace_summary

_HOUR = 3_600_000
# One node for 4 hours, two more that leave together after 1 hour, one of
# another zone with them; one that comes after 2 hours.
_TEXT = f"""# duration_ms={4 * _HOUR}
0,add,a/1
0,add,a/2
0,add,a/3
0,add,b/1
{_HOUR // 2},notice,a/2
{_HOUR},remove,a/2
{_HOUR},remove,a/3
{_HOUR},remove,b/1
{2 * _HOUR},add,a/4
{3 * _HOUR},remove,a/4
"""


def parse(text):
  return readers.parse_trace(text, source="t")


class SummaryTest(parameterized.TestCase):

  def test_figures(self):
    self.assertEqual(
        trace_summary.summarize(parse(_TEXT)).figures(),
        {
            "hours": 4.0,
            "live nodes, mean": 2.0,  # 4, 1, 2, 1.
            "live nodes, least": 1,
            "live nodes, most": 4,
            "preempted nodes": 4,
            "preemptions per node-hour": 0.5,
            "hours to preemption, median": 1.0,
            "instants of preemption": 2,
            "instants in several zones": 1,
            "nodes per instant, mean": 2.0,
            "nodes per instant, most": 3,
            "nodes given notice": 1,
        },
    )

  def test_time_before_the_first_event_has_no_nodes(self):
    trace = parse("1000,add,a\n3000,add,b\n4000,remove,a")
    figures = trace_summary.summarize(trace).figures()
    self.assertEqual(figures["live nodes, mean"], (2 * 1 + 1 * 2) / 4)
    self.assertEqual(figures["live nodes, least"], 1)

  def test_nothing_happens(self):
    figures = trace_summary.summarize(parse("# duration_ms=9\n0,add,a"))
    self.assertEqual(figures.figures()["preemptions per node-hour"], 0.0)
    self.assertEqual(figures.figures()["nodes per instant, mean"], 0.0)
