"""Traces as values, and their figures."""

import json
import re

from absl.testing import parameterized

from bamboo_jax import sim
from bamboo_jax.traces import readers, scale, trace as trace_lib
from tests import folders
from tests.traces import readers_test

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
parse = readers_test.parse


class TraceTest(parameterized.TestCase):

  def test_zone(self):
    for node, zone in (("node7", ""), ("zone1/7", "zone1"), ("us/east/7", "us/east")):
      event = trace_lib.Event(5, "add", node)
      self.assertEqual((event.zone, str(event)), (zone, f"5,add,{node}"))

  def test_live_nodes(self):
    # It may come back under its name.
    trace = parse(
        "0,add,a\n0,add,z/b\n20,notice,a\n30,remove,a\n30,add,z/c\n40,remove,z/b\n50,add,a\n"
        "60,notice,a"
    )
    self.assertEqual(trace.live_steps(), ((0, 2), (20, 2), (30, 2), (40, 1), (50, 2), (60, 2)))
    self.assertEqual((trace.num_nodes, trace.zones), (2, ("", "z")))

  def test_no_event_is_before_the_start(self):
    with self.assertRaisesRegex(ValueError, "time_ms must be at least 0, got -1"):
      trace_lib.Event(-1, "add", "a")


class SummaryTest(parameterized.TestCase):

  def test_figures(self):
    self.assertEqual(
        trace_lib.summarize(parse(_TEXT)),
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

  @parameterized.parameters(
      # Before the first event there are no nodes.
      ("1000,add,a\n3000,add,b\n4000,remove,a", "live nodes, mean", (2 * 1 + 1 * 2) / 4),
      ("1000,add,a\n3000,add,b\n4000,remove,a", "live nodes, least", 1),
      ("# duration_ms=9\n0,add,a", "preemptions per node-hour", 0.0),
      ("# duration_ms=9\n0,add,a", "nodes per instant, mean", 0.0),
  )
  def test_a_figure(self, text, name, expected):
    self.assertEqual(trace_lib.summarize(parse(text))[name], expected)


_NODES = "0,add,a/1\n0,add,b/1\n100,remove,a/1\n400,notice,b/1\n"
_JSON = {"metadata": {"gap_seconds": 60}, "data": {"a": [2, 1], "b": [0, 1]}}


class SpotPriceTest(parameterized.TestCase):

  @parameterized.parameters(
      ("", None),
      ("0,price,2", 2.0),
      # Of 500 ms of nodes, 100 of each are before the change.
      ("0,price,1\n100,price,6", (200 * 1 + 300 * 6) / 500),
      # The first price of a zone holds from the start.
      ("0,price,9\n0,price,a/1\n300,price,b/2", (100 * 1 + 400 * 2) / 500),
      ("0,price,9\n50,price,a/1\n60,price,a/3", (60 + 40 * 3 + 400 * 9) / 500),
  )
  def test_mean(self, prices, expected):
    trace = parse(_NODES + prices)
    mean = trace_lib.mean_usd_per_hour(trace)
    self.assertEqual(mean is None, expected is None)
    self.assertAlmostEqual(mean or 0.0, expected or 0.0)
    self.assertEqual(parse(readers.render_events(trace)).prices, trace.prices)
    faster = scale.scale(trace, num_nodes=None, time_scale=0.1)
    self.assertEqual(trace_lib.mean_usd_per_hour(faster), mean)

  def test_example_of_the_page(self):
    page = folders.ROOT / "docs/research/traces.md"
    (example,) = re.findall(r"^# duration_ms=\d+\n[^`]*", page.read_text(), re.MULTILINE)
    self.assertAlmostEqual(trace_lib.mean_usd_per_hour(parse(example)), 0.93, 2)

  def test_a_zone_without_a_price(self):
    with self.assertRaisesRegex(ValueError, r"zones \['a'\], .* none .* 'b'"):
      trace_lib.mean_usd_per_hour(parse(f"{_NODES}0,price,a/1"))

  def test_files_of_zones(self):
    trace = parse(json.dumps(_JSON | {"prices": {"a": [1, 1], "b": [5, 2]}}))
    lines = ["0,price,a/1", "0,price,b/5", "60000,price,b/2"]
    self.assertEqual(list(map(str, trace.prices)), lines)
    first = json.dumps({**_JSON, "data": [1, 1], "prices": [3, 4]})
    self.assertEqual(parse(first).prices[0].zone, "")
    first = readers.parse_trace(first, source="x", zone="x")
    self.assertEqual([price.zone for price in first.prices], ["x", "x"])
    self.assertLen(scale.merge([first, trace]).prices, 5)
    # Prices of all nodes are, among others, those of its zones.
    plain = parse("0,price,2\n0,add,c/1\n0,add,d/1\n9,remove,d/1")
    both = scale.merge([plain, trace]).prices[:2]
    self.assertEqual([price.zone for price in both], ["c", "d"])

  def test_bill(self):
    lines = [f"0,add,n{i}" for i in range(8)] + ["1800000,remove,n1"]
    lines = ["# duration_ms=3600000", "0,price,0.5", "900000,price,1.5", *lines]
    account = sim.simulate(parse("\n".join(lines)), "varuna").account
    hours = (8 * 0.25, 8 * 0.25 + 7 * 0.5)
    self.assertAlmostEqual(account.usd, 0.5 * hours[0] + 1.5 * hours[1])
    self.assertIn("mean of trace t.csv", account.price.render("spot"))
