"""Generated traces: what was asked for comes out, within chance."""

import collections
import math

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax import config as config_lib
from bamboo_jax.traces import generator, readers, trace as trace_lib

Parameters = config_lib.TraceSection
_SIZES = dict(bulk_sizes=((1, 1.0), (5, 1.0)))

_PARAMETERS = st.builds(
    Parameters,
    nodes_per_zone=st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple),
    hours=st.floats(0.1, 30.0),
    hazard_per_node_hour=st.floats(0.0, 3.0),
    bulk_sizes=st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 1.0)), min_size=1).map(tuple),
    zone_correlation=st.floats(0.0, 1.0),
    reacquire_secs=st.sampled_from([0.0, 1.0, 600.0, math.inf]),
    notice_secs=st.sampled_from([0.0, 30.0, 5000.0]),
)


def generate(seed=0, **changes):
  return generator.generate_trace(Parameters(**changes), seed=seed)


def zone_share(trace):
  """Returns the share of instants that hit several zones."""
  figures = trace_lib.summarize(trace)
  return figures["instants in several zones"] / figures["instants of preemption"]


class GenerateTest(parameterized.TestCase):

  # A `Trace` is sorted and free of contradictions, or cannot be built.
  @hypothesis.settings(max_examples=30)
  @hypothesis.given(_PARAMETERS, st.integers(0, 2**63))
  def test_bounds(self, parameters, seed):
    trace = generator.generate_trace(parameters, seed=seed)
    self.assertEqual(trace, generator.generate_trace(parameters, seed=seed))
    live, came, warned = collections.Counter(), {}, {}
    for event in trace.events:
      live[event.zone] += (event.kind == "add") - (event.kind == "remove")
      zone = int(event.zone.removeprefix("zone") or 0)
      self.assertLessEqual(live[event.zone], parameters.nodes_per_zone[zone])
      if event.kind != "remove":
        {"add": came, "notice": warned}[event.kind][event.node] = event.time_ms
      elif parameters.notice_secs:
        early_ms = event.time_ms - warned.pop(event.node)
        age_ms = event.time_ms - came[event.node]
        # Times are rounded up to whole milliseconds.
        self.assertAlmostEqual(early_ms, min(1000 * parameters.notice_secs, age_ms), delta=1)
    self.assertEmpty(warned)
    self.assertLen(
        [e for e in trace.events if e.time_ms == 0 and e.kind == "add"],
        sum(parameters.nodes_per_zone),
    )

  # About 5,000 preemptions each. Instants are independent, so the deviation is
  # at most that of so many instants: four standard deviations are allowed.
  @parameterized.named_parameters(
      ("single", dict()),
      ("rare", dict(hazard_per_node_hour=0.01)),
      ("bulks", dict(bulk_sizes=((1, 5.0), (2, 3.0), (6, 2.0)))),
      ("bulk_of_all", dict(bulk_sizes=((100, 1.0),))),
      ("zones", dict(nodes_per_zone=(20, 10, 2), zone_correlation=0.3) | _SIZES),
      ("few_come_back", dict(reacquire_secs=36_000.0)),
  )
  def test_hazard(self, changes):
    hazard = changes.pop("hazard_per_node_hour", 0.5)
    summary = trace_lib.summarize(
        generate(hours=170 / hazard, hazard_per_node_hour=hazard, **changes)
    )
    largest, num_instants = summary["nodes per instant, most"], summary["instants of preemption"]
    deviation = math.sqrt(num_instants) * largest
    expected = hazard * summary["live nodes, mean"] * summary["hours"]
    self.assertGreater(num_instants, 20)
    self.assertLess(abs(summary["preempted nodes"] - expected), 4 * deviation)

  def test_bulk_sizes(self):
    bulks = trace_lib.count_bulks(generate(hours=2000.0, bulk_sizes=((1, 3.0), (4, 1.0))))
    self.assertEqual(set(bulks), {1, 4})
    share = bulks[4] / bulks.total()
    self.assertAlmostEqual(share, 0.25, delta=0.04)

  def test_zone_correlation(self):
    zones = dict(hours=400.0, nodes_per_zone=(10, 10, 10))
    for correlation in (0.0, 0.055, 1.0):
      trace = generate(zone_correlation=correlation, **zones)
      self.assertAlmostEqual(zone_share(trace), correlation, delta=0.03)

  def test_reacquire(self):
    options = dict(hours=200.0, hazard_per_node_hour=1.0)
    at_once, later = (
        trace_lib.summarize(generate(reacquire_secs=secs, **options)) for secs in (0.0, 3600.0)
    )
    self.assertAlmostEqual(at_once["live nodes, mean"], 32.0, places=3)
    # Alive for an hour and missing for an hour, on average.
    self.assertAlmostEqual(later["live nodes, mean"], 16.0, delta=1.0)
    trace = generate(hazard_per_node_hour=1.0, reacquire_secs=math.inf)
    self.assertLess(trace.live_steps()[-1][1], 2)
    self.assertEqual(trace.num_nodes, 32)

  def test_one_zone(self):
    trace = generate(hazard_per_node_hour=0.0, nodes_per_zone=(3,), hours=2.0)
    lines = " ".join(map(str, trace.events))
    self.assertEqual(lines, "0,add,node1 0,add,node2 0,add,node3")
    self.assertEqual(trace.duration_ms, 7_200_000)
    self.assertNotEqual(generate(seed=0).events, generate(seed=1).events)
    for changes, message in (
        ({"seed": -1}, "^seed must be at least 0, got -1"),
        ({"hours": 1e9}, "^config.study.trace.hours must be up to 87840, got 1000000000.0"),
        ({"nodes_per_zone": (1, 10**9)}, "nodes_per_zone must be up to 100000, got 10000"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        generate(**changes)


class ResampleTest(parameterized.TestCase):

  def resample(self, text, **options):
    recorded = readers.parse_trace(text, source="t")
    given = dict(hours=8.0, block_hours=1.0, seed=0) | options
    return generator.resample(recorded, name="new", **given)

  def test_a_block_of_the_whole_trace_is_the_trace(self):
    text = "# duration_ms=3600000\n0,add,a/1\n0,add,a/2\n5,notice,a/1\n9,remove,a/1\n20,add,b/1"
    trace = self.resample(text, hours=1.0)
    kinds = [(e.time_ms, e.kind, e.zone) for e in trace.events]
    self.assertEqual(
        kinds, [(0, "add", "a"), (0, "add", "a"), (9, "remove", "a"), (20, "add", "b")]
    )
    self.assertEqual((trace.duration_ms, trace.name), (3_600_000, "new"))

  def test_bursts_and_zones_stay(self):
    recorded = generate(
        nodes_per_zone=(9, 6), hours=100.0, bulk_sizes=((3, 1.0),), zone_correlation=0.3
    )
    text = readers.render_events(recorded)
    trace = self.resample(text, hours=400.0, block_hours=10.0)
    self.assertEqual(trace, self.resample(text, hours=400.0, block_hours=10.0))
    self.assertNotEqual(trace, self.resample(text, hours=400.0, block_hours=10.0, seed=1))
    got, want = (trace_lib.summarize(t) for t in (trace, recorded))
    self.assertLessEqual(got["live nodes, most"], 15)
    self.assertAlmostEqual(got["live nodes, mean"], want["live nodes, mean"], delta=0.5)
    rates = [figures["preemptions per node-hour"] for figures in (got, want)]
    self.assertAlmostEqual(rates[0] / rates[1], 1.0, delta=0.3)
    self.assertAlmostEqual(zone_share(trace), zone_share(recorded), delta=0.1)
    self.assertEqual(got["nodes per instant, most"], want["nodes per instant, most"])

  @parameterized.parameters(
      ({"block_hours": 9.0}, r"block_hours must be above 0, up to 1 \(the trace\), got 9"),
      ({"block_hours": 0.0}, "block_hours must be"),
      ({"hours": -1.0}, "hours must be above 0"),
      ({"seed": -1}, "seed at least 0, got .* and -1"),
  )
  def test_refuses(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      self.resample("# duration_ms=3600000\n0,add,a", **options)


class OptionsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("nodes_per_zone", ()),
      ("bulk_sizes", (), ((0, 1.0),), ((1, 0.0),), ((1, 2.0), (2, -1.0))),
      ("zone_correlation", 0.1, 1.1),
      ("reacquire_secs", -1.0),
  )
  def test_refuses(self, name, *values):
    for value in values:
      with self.assertRaisesRegex(ValueError, f"^config.study.trace.{name} must be .*, got"):
        Parameters(**{name: value})
