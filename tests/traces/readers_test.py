"""Files of traces, in all formats."""

import os
import pathlib
import time

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.traces import readers, trace as trace_lib
from tests import folders, tables

# Recorded traces, where a checkout has them; see docs/research/traces.md.
_RECORDED = pathlib.Path(__file__).resolve().parents[3] / "shared" / "traces"
# A file, and the error.
_MISTAKES = r"""
[0, 1]
  line 1: a line is \[milliseconds, kind, .* got \[0, 1\]
[0,
  line 1: not JSON
[0, "add", {"nodes": [1], "duration": 5}]
  line 1: a line is
[-1, "add", {"nodes": ["a"], "duration": 5}]
  line 1: a line is
[0, "remove", {"nodes": ["a"], "duration": 5}]
  'a'
0,1\n60,2\n50,3
  line 3: lines must be in order of time, got 50
0,1\n60,-2
  line 2: a line is milliseconds,count
0,5\n60,1000000000
  at most 100000 nodes may be alive
0,5\n1000000000000000,5
  may last .* ms .ten years., got 1000
# only words\n\n
  is empty: it has no event
0,add,a\n\n5,add,a
  line 3: node 'a' is added twice
1,remove,a
  line 1: node 'a' is removed, but it is not there
0,add,a\n1,remove,a\n2,remove,a
  line 3: node 'a' is removed, but
0,add,a\n1,notice,b
  line 2: node 'b' is given notice, but it is
0,add,a\n1,notice,a\n1,notice,a
  line 3: node 'a' is given notice twice
0,add,a\n5,remove
  line 2: an event has 3 values, milliseconds,add
0,add,a,z1
  line 1: an event has 3 values
x,add,a
  line 1: milliseconds must be a non-negative integer, got 'x
-1,add,a
  got '-1'
1.5,add,a
  got '1.5'
0,add,a\n1,remoev,a
  line 2: Unknown kind of event 'remoev'; did
0,add,
  line 1: node must be a name without spaces or commas, got ''
0,add,a b
  got 'a b'
5,add,a\n0,add,b
  line 2: events must be in order of time, got 0 after 5
0,add,a
  must last some time.* A line `# duration_ms=...` says when
# duration_ms=3\n0,add,a\n5,add,b
  =3, last event at 5 ms
# duration_ms=1h\n0,add,a
  line 1: duration_ms must be a number
hello
  line 1: not a trace. A line is milliseconds.* Got 'hello'
# a\n0,x7
  line 2: .*0,x7
2021-12-10, 13:07:45
  line 1: a sample is date, time, count, got
2021-12-10, 25:07:45, 3
  line 1: date and time must be as in 2021
10.12.21, 13:07:45, 3
  got '10.12.21, 13:07:45'
2021-12-10, 13:07:45+01:00, 3
  without a time zone
2021-12-10, 13:07:45, -3
  count must be a non-negative integer, got
2021-12-10, 13:00:00, 3\n\n2021-12-10, 13:00:00, 4
  line 3: 4 .*but 3 .*in line 1
2021-12-10, 13:00:00, 3
  must last some time
2021-12-10, 13:00:00, 0\n2021-12-10, 13:01:00, 0
  is empty
0,add,a\n0,price,cheap
  line 2: .*zone/dollars, got 'cheap'
0,add,a\n0,price,a/0
  line 2: .*above 0, got 0.0
0,add,a\n9,remove,a\n9,price,1\n5,price,2
  in order of time, got 5,price,2.0 after 9,price,1.0
{"data":\n[1, 2}
  line 2: not JSON: Expecting ',' delimiter
{"data": [1]}
  metadata.gap_seconds must be a number .*got N
{"metadata": {"gap_seconds": 0}}
  above 0, got 0
{"metadata": {"gap_seconds": true}}
  above 0, got True
{"metadata": {"gap_seconds": Infinity}}
  above 0, got inf
{"metadata": {"gap_seconds": 1}}
  data must be a list .* got None
{"metadata": {"gap_seconds": 1}, "data": []}
  data must be a list
{"metadata": {"gap_seconds": 1}, "data": {}}
  data and prices must have as many
{"metadata": {"gap_seconds": 1}, "data": [3, 0.9]}
  data\[1\] must be a non-negative integer, got 0.9
{"metadata": {"gap_seconds": 1}, "data": [NaN]}
  got nan
{"metadata": {"gap_seconds": 1}, "data": [HUGE]}
  data\[0\] must be a non-negative integer, got 1000
{"metadata": {"gap_seconds": 1}, "data": [[3]]}
  data\[0\] .*got \[3
{"metadata": {"gap_seconds": 1}, "data": {"a": [1], "b": [1, 2]}}
  each zone, got {'data.a': 1, 'data.b': 2}
{"metadata": {"gap_seconds": 1}, "data": [0, 0]}
  is empty
{"metadata": {"gap_seconds": 1}, "data": {"us east": [1]}}
  a zone must be a name .* got 'us east'
{"metadata": {"gap_seconds": 1}, "data": {"a": [2, 1]}, "prices": [1]}
  data and prices must have .*{'data.a': 2, 'prices': 1}
{"metadata": {"gap_seconds": 1}, "data": [2, 1], "prices": {"a": 3}}
  prices.a must be a list
{"metadata": {"gap_seconds": 1}, "data": [2, 1], "prices": [1, 0]}
  prices\[1\] must be a number above 0, got 0
{"metadata": {"gap_seconds": 1}, "data": [2, 1], "prices": [1, null]}
  prices\[1\] .* got None
"""


def parse(text, **options):
  return readers.parse_trace(text, source="t.csv", **options)


def lines(trace):
  return " ".join(map(str, trace.events))


def sample(minutes, count, second=0):
  time = f"{13 + minutes // 60:02}:{minutes % 60:02}:{second:02}"
  return f"2021-12-10, {time}, {count}"


class FormatsTest(parameterized.TestCase):

  def test_segments(self):
    trace = parse("""
[0, "add", {"nodes": ["node-0", "node-1"], "duration": 60000, "x": [8, 4]}]
[60000, "no-op", {"nodes": [], "duration": 60000}]
[120000, "remove", {"nodes": ["node-1"], "duration": 60000}]
""")
    self.assertEqual((trace.name, trace.duration_ms), ("t.csv", 180_000))
    self.assertEqual(lines(trace), "0,add,node-0 0,add,node-1 120000,remove,node-1")

  @parameterized.parameters(
      *tables.read(_MISTAKES), ("[" + "0, " * 50_000 + "0]", "line 1: a line is"), ("", "is empty")
  )
  def test_refuses(self, text, message):
    with self.assertRaisesRegex(ValueError, f"t.csv.*{message}") as caught:
      parse(text.replace(r"\n", "\n").replace("HUGE", f"{10**400}"))  # An integer, but no float.
    self.assertLess(len(str(caught.exception)), 300)

  @parameterized.named_parameters(
      ("counts", "0,1\n0,3\n60000,2\n90000,2\n", ((0, 3), (60_000, 2)), 90_000),
      (
          "ticks",
          '{"metadata": {"gap_seconds": 300}, "data": [0, 2, 2, 1]}',
          ((300_000, 2), (900_000, 1)),
          1_200_000,
      ),
      (
          "zones",
          '{"metadata": {"gap_seconds": 1}, "data": {"b": [1, 2], "a": [1, 0]}}',
          ((0, 2), (1000, 2)),
          2000,
          ("a", "b"),
      ),
      ("events_to_the_last", "0,add,a\r\n9,remove,a\r\n", ((0, 1), (9, 0)), 9),
  )
  def test_live_nodes(self, text, live_steps, duration_ms, zones=("",)):
    trace = parse(text)
    self.assertEqual(trace.live_steps(), live_steps)
    self.assertEqual((trace.duration_ms, trace.zones, trace.prices), (duration_ms, zones, ()))

  def test_too_many_nodes_over_time(self):
    lines = [f"{i},{100_000 * (i % 2)}" for i in range(42)]
    with self.assertRaisesRegex(ValueError, "may have 2000000 nodes, got 21"):
      parse("\n".join(lines))

  def test_events(self):
    trace = parse("""
# A comment, and what it says of itself:
# duration_ms=7000
0,add,node1
0, add , z/2

5000,notice,node1
6000,remove,node1
""")
    self.assertEqual(trace.duration_ms, 7000)
    self.assertEqual(lines(trace), "0,add,node1 0,add,z/2 5000,notice,node1 6000,remove,node1")
    self.assertEqual(parse(readers.render_events(trace)), trace)


class SamplesTest(parameterized.TestCase):

  def test_nodes_are_inferred(self):
    lines = [sample(0, 3), sample(5, 1), sample(6, 2), sample(10, 2)]
    trace = parse("\n".join(lines))
    self.assertEqual(trace.live_steps(), ((0, 3), (300_000, 1), (360_000, 2)))
    self.assertEqual(trace.duration_ms, 600_000)
    self.assertRegex(trace.notes[0], "takes random ones .seed 0.")
    added = [event.node for event in trace.events if event.kind == "add"]
    self.assertEqual(added, ["node1", "node2", "node3", "node4"])

  @parameterized.parameters(
      ((0, 1, 2, 3), None),
      ((0, 10, 20, 35), None),
      (
          (0, 1, 2, 13, 14, 45),
          "recorder has 2 holes, of up to 31 min: the count before each is taken",
      ),
  )
  def test_holes(self, minutes, note):
    trace = parse("\n".join(sample(minute, 3) for minute in minutes))
    self.assertLen(trace.notes, 2 if note else 1)
    self.assertIn(note or "", trace.notes[-1])

  def test_time_is_linear_in_the_nodes(self):
    begin_secs = time.process_time()
    trace = parse("0,30000\n1,15000")
    self.assertEqual(trace.live_steps(), ((0, 30_000), (1, 15_000)))
    # A tenth of a second; a loop over pairs of nodes takes a minute.
    self.assertLess(time.process_time() - begin_secs, 3)

  def test_seed_decides_who_goes(self):
    lines = [sample(0, 40), sample(1, 20), sample(2, 20)]
    traces = [parse("\n".join(lines), seed=seed) for seed in (0, 0, 1)]
    self.assertEqual(traces[0], traces[1])
    self.assertNotEqual(traces[0].events, traces[2].events)

  def test_overlapping_readings(self):
    # Three readings, each repeated twice while the next ones are taken.
    lines = [sample(m, 80) for m in (0, 1, 2)]
    lines += [sample(m, 70) for m in (1, 2, 3)]
    lines += [sample(m, 60, second=7) for m in (2, 3, 4)]
    expected = ((0, 80), (60_000, 70), (127_000, 60))
    self.assertEqual(parse("\n".join(lines)).live_steps(), expected)

  @hypothesis.settings(max_examples=50)
  @hypothesis.given(
      st.lists(st.integers(0, 5), min_size=2, max_size=30).filter(any),
      st.randoms(use_true_random=False),
  )
  def test_order_of_lines_does_not_matter(self, counts, draw):
    lines = [sample(m, count) for m, count in enumerate(counts)]
    trace = parse("\n".join(lines))
    draw.shuffle(lines)
    self.assertEqual(parse("\n".join(lines)), trace)


class FilesTest(folders.FolderCase):

  def _write(self, name, content):
    path = pathlib.Path(self.folder, name)
    path.write_bytes(content)
    return path

  def test_several_files_are_zones(self):
    head = b'{"metadata": {"gap_seconds": 60}, "data": '
    paths = [
        self._write("east.json", head + b"[2, 1, 1]}"),
        self._write("west.json", head + b"[1, 1]}"),
    ]
    trace = readers.read_traces(paths)
    self.assertEqual(trace.zones, ("east", "west"))
    self.assertEqual(trace.live_steps(), ((0, 3), (60_000, 2)))
    self.assertEqual(trace.duration_ms, 120_000)
    self.assertIn("ends with the shortest", trace.notes[-1])
    self.assertEqual(readers.read_traces(paths[:1]).zones, ("",))

  def test_not_text(self):
    path = self._write("x.png", b"\x89PNG\xff")
    with self.assertRaisesRegex(ValueError, "x.png is not a trace: it is not t"):
      readers.read_traces([path])

  def test_no_file(self):
    with self.assertRaises(FileNotFoundError):
      readers.read_traces([os.path.join(self.folder, "no.csv")])
    with self.assertRaisesRegex(ValueError, "No trace given"):
      readers.read_traces([])

  # What the files themselves are said to hold.
  @parameterized.parameters(
      ("p3-trace.csv", 32, 167, 79, 6, 11.37),
      ("g4dn-trace.csv", 24, 74, 48, 5, 10.77),
      ("gcp-v100x1-us-east1-c.txt", 80, 518, 55, 40, 24.17),
  )
  def test_recorded(self, name, nodes, lost, instants, bulk, hours):
    if not (_RECORDED / name).exists():
      self.skipTest("no recorded traces here")
    trace = readers.read_traces([_RECORDED / name])
    summary = trace_lib.summarize(trace)
    self.assertEqual(trace.num_nodes, nodes)
    self.assertEqual(summary["preempted nodes"], lost)
    self.assertEqual(summary["instants of preemption"], instants)
    self.assertEqual(summary["nodes per instant, most"], bulk)
    self.assertAlmostEqual(summary["hours"], hours, places=2)
