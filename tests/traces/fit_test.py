"""What a trace comes to, and the parameters that imitate it."""

import math

from absl.testing import parameterized

from bamboo_jax.traces import (
    fit,
    generator,
    parameters as trace_parameters,
    readers,
    summary as trace_summary,
)

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


class FitTest(parameterized.TestCase):

  def test_hazard_is_the_mean_over_the_hours_of_the_day(self):
    day, noon = 24 * _HOUR, 12 * _HOUR
    fitted = fit.fit_parameters(
        parse(
            f"# duration_ms={2 * day}\n0,add,a\n0,add,b\n{noon},remove,b\n"
            f"{day},add,c\n{day + noon},remove,c\n"
        )
    )
    # Two losses in the two node-hours from 12 to 13; else none.
    self.assertAlmostEqual(fitted.hazard_per_node_hour, 1 / 24)
    profile = [0.0] * 12 + [24.0] + [0.0] * 11
    self.assertSequenceAlmostEqual(fitted.hour_profile, profile)

  def test_by_hand(self):
    self.assertEqual(
        fit.fit_parameters(parse(_TEXT)),
        trace_parameters.Parameters(
            nodes_per_zone=(3, 1),
            hours=4.0,
            hazard_per_node_hour=0.5,
            bulk_sizes=((1, 2), (2, 1)),  # Of a zone at an instant.
            zone_correlation=0.5,
            # 3, 2, 3 nodes are missing in hours 1, 2, 3, and one comes.
            reacquire_secs=8 * 3600.0,
            notice_secs=1800.0,
        ),
    )

  def test_nothing_happens(self):
    parameters = fit.fit_parameters(parse("# duration_ms=9\n0,add,a"))
    self.assertEqual(parameters.hazard_per_node_hour, 0.0)
    self.assertEqual(parameters.reacquire_secs, math.inf)
    generator.generate_trace(parameters, seed=0)

  # The estimates are close to what the trace was generated from.
  def test_finds_the_parameters(self):
    asked = trace_parameters.Parameters(
        nodes_per_zone=(12, 8),
        hours=1200.0,
        hazard_per_node_hour=0.3,
        bulk_sizes=((1, 0.7), (3, 0.3)),
        zone_correlation=0.2,
        hour_profile=(0.5,) * 12 + (1.5,) * 12,
        start_hour=5.25,
        reacquire_secs=1200.0,
        notice_secs=30.0,
    )
    trace = generator.generate_trace(asked, seed=0)
    found = fit.fit_parameters(trace)
    for field in ("nodes_per_zone", "hours", "start_hour"):
      self.assertEqual(getattr(found, field), getattr(asked, field))
    for field, delta in (
        ("hazard_per_node_hour", 0.02),
        ("zone_correlation", 0.03),
        ("reacquire_secs", 60.0),
        ("notice_secs", 0.01),
    ):
      error = abs(getattr(found, field) - getattr(asked, field))
      self.assertLess(error, delta, msg=field)
    sizes = dict(found.bulk_sizes)
    self.assertAlmostEqual(sizes[1] / sum(sizes.values()), 0.7, delta=0.04)
    self.assertAlmostEqual(sum(found.hour_profile[:12]) / 12, 0.5, delta=0.05)
    weights = zip(found.hour_profile, asked.hour_profile, strict=True)
    self.assertLess(max(abs(weight - true) for weight, true in weights), 0.35)

  def test_a_short_trace_has_no_profile(self):
    for hours, later in ((47.0, 1.0), (49.0, 0.0)):
      asked = trace_parameters.Parameters(hours=hours, hour_profile=(1.0,) + (0.0,) * 23)
      trace = generator.generate_trace(asked, seed=0)
      profile = fit.fit_parameters(trace).hour_profile
      self.assertEqual(profile[1:], (later,) * 23)
