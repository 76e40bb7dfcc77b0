"""Traces for other clusters."""

import fractions
import time

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax import config as config_lib
from bamboo_jax.traces import generator, scale, trace as trace_lib
from tests.traces import readers_test

parse, lines = readers_test.parse, readers_test.lines

_BAD = (0.0, -1.0, float("inf"), float("nan"))
_TWO = "0,add,a\n0,add,b\n100,notice,b\n200,remove,b\n300,add,c\n400,remove,a"


class ScaleTest(parameterized.TestCase):

  def test_time(self):
    trace = scale.scale(parse(_TWO), num_nodes=None, time_scale=0.126)
    self.assertEqual([event.time_ms for event in trace.events], [0, 0, 13, 25, 38, 50])
    self.assertEqual(trace.duration_ms, 50)

  @parameterized.parameters(
      *((dict(num_nodes=None, time_scale=t), "time_scale must be above 0, got") for t in _BAD),
      *((dict(num_nodes=n, time_scale=1.0), f"from 1 to 100000, got {n}") for n in (0, 10**9)),
  )
  def test_refuses(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      scale.scale(parse(_TWO), **options)

  @parameterized.parameters(
      # `c` takes the place that `b` had, which is the upper one.
      (1, "0,add,b 100,notice,b 200,remove,b 300,add,c"),
      (2, _TWO.replace("\n", " ")),
      (
          4,
          "0,add,a 0,add,a.1 0,add,b 0,add,b.1 100,notice,b 100,notice,b.1 "
          "200,remove,b 200,remove,b.1 300,add,c 300,add,c.1 400,remove,a "
          "400,remove,a.1",
      ),
  )
  def test_nodes(self, num_nodes, expected):
    trace = scale.scale(parse(_TWO), num_nodes=num_nodes, time_scale=1.0)
    self.assertEqual(lines(trace), expected)
    self.assertEqual(trace.duration_ms, 400)

  def test_copies_of_copies(self):
    trace = scale.scale_nodes(scale.scale_nodes(parse(_TWO), 4), 8)
    self.assertEqual(trace.num_nodes, 8)

  @hypothesis.settings(max_examples=30)
  @hypothesis.given(st.integers(0, 10**6), st.integers(1, 40))
  def test_shares_stay(self, seed, num_nodes):
    parameters = config_lib.TraceSection(nodes_per_zone=(8, 4), hours=6.0, hazard_per_node_hour=0.5)
    trace = generator.generate_trace(parameters, seed=seed)
    scaled = scale.scale_nodes(trace, num_nodes)
    self.assertLessEqual(scaled.num_nodes, num_nodes)
    if num_nodes % 12 == 0:
      factor = fractions.Fraction(num_nodes, 12)
      before, after = map(trace_lib.summarize, (trace, scaled))
      self.assertEqual(scaled.num_nodes, num_nodes)
      for name in ("preempted nodes", "live nodes, mean"):
        self.assertAlmostEqual(after[name], factor * before[name])

  def test_merge(self):
    merged = scale.merge([parse(_TWO), parse("0,add,x\n250,add,y")])
    self.assertEqual(lines(merged), "0,add,a 0,add,b 0,add,x 100,notice,b 200,remove,b 250,add,y")
    self.assertEqual(merged.duration_ms, 250)
    with self.assertRaisesRegex(trace_lib.ContradictionError, "'a' is added twice"):
      scale.merge([parse(_TWO), parse(_TWO)])
    one, two = (parse(f"0,add,{n}\n0,price,{n}\n9,notice,{n}") for n in (1, 2))
    with self.assertRaisesRegex(ValueError, "different prices of zone ''"):
      scale.merge([one, two])

  def test_merge_time_is_linear_in_the_events(self):
    events = "".join(f"{i},add,a{i}\n" for i in range(20_000))
    prices = "".join(f"{i},price,{i + 1}\n" for i in range(2_000))
    trace = parse(events + prices)
    begin_secs = time.process_time()
    self.assertLen(scale.merge([trace]).prices, 2_000)
    # 50 ms; the zones of all events for each price take 13 seconds.
    self.assertLess(time.process_time() - begin_secs, 2)


class ReplayTest(parameterized.TestCase):

  def test_start_and_rest(self):
    events = "600,add,a/1 600,add,b/1 600,add,a/2 600,notice,a/2 600,remove,b/1 60600,notice,a/1"
    trace = parse(f"{events} 90600,remove,a/1 90600,add,b/2 120600,add,a/1".replace(" ", "\n"))
    got = scale.plan_replay(scale.scale(trace, num_nodes=None, time_scale=1 / 60))
    self.assertEqual(got.first, ("a/1", "a/2"))
    want = "1000,notice,a/1 1500,remove,a/1 1500,add,b/2 2000,add,a/1"
    self.assertEqual(lines(got), want)
    self.assertEqual((got.num_nodes, got.duration_ms), (4, 2000))
