"""The value type of traces."""

from absl.testing import parameterized

from bamboo_jax.traces import trace as trace_lib
from tests import tables

Event = trace_lib.Event
ADD_A = Event(0, "add", "a")
# Events, of which the last one cannot follow, and the error.
_CONTRADICTIONS = """
0 add a, 1 add a
  node 'a' is added twice
1 remove a
  'a' is removed, but it is not there
0 add a, 1 remove a, 2 remove a
  'a' is removed, but
0 add a, 1 notice b
  'b' is given notice, but it is
0 add a, 1 notice a, 1 notice a
  'a' is given notice twice
0 add a, 9 add b, 8 add c
  in order of time, got 8 after 9
"""


def make_trace(text):
  """Returns the trace of events written as "0 add a, 9 remove a"."""
  entries = [entry.split() for entry in text.split(",")]
  events = tuple(Event(int(at), kind, node) for at, kind, node in entries)
  return trace_lib.Trace("t", events, duration_ms=100)


class EventTest(parameterized.TestCase):

  def test_zone(self):
    for node, zone in (("node7", ""), ("zone1/7", "zone1"), ("us/east/7", "us/east")):
      self.assertEqual(Event(5, "add", node).zone, zone)
      self.assertEqual(str(Event(5, "add", node)), f"5,add,{node}")

  @parameterized.parameters(
      ((-1, "add", "a"), "time_ms must be at least 0, got -1"),
      ((0, "ad", "a"), "Unknown kind of event 'ad'; did you mean 'add'"),
      ((0, "add", ""), "node must be a name without spaces or commas, got ''"),
      ((0, "add", "a b"), "got 'a b'"),
  )
  def test_refuses(self, values, message):
    with self.assertRaisesRegex(ValueError, message):
      Event(*values)


class TraceTest(parameterized.TestCase):

  def test_live_nodes(self):
    # It may come back under its name.
    text = "0 add a, 0 add z/b, 20 notice a, 30 remove a, 30 add z/c, 40 remove z/b"
    trace = make_trace(f"{text}, 50 add a, 60 notice a")
    self.assertEqual(trace.live_steps(), ((0, 2), (20, 2), (30, 2), (40, 1), (50, 2), (60, 2)))
    self.assertEqual(trace.num_nodes, 2)
    self.assertEqual(trace.zones, ("", "z"))
    self.assertEqual(
        [(at, len(events)) for at, events in trace.instants()],
        [(0, 2), (20, 1), (30, 2), (40, 1), (50, 1), (60, 1)],
    )

  @parameterized.parameters(*tables.read(_CONTRADICTIONS))
  def test_contradiction(self, text, message):
    with self.assertRaisesRegex(trace_lib.ContradictionError, message) as caught:
      make_trace(text)
    self.assertEqual(caught.exception.index, text.count(","))

  @parameterized.parameters(
      ((), 100, "Trace 't' is empty"),
      ((ADD_A, Event(9, "add", "b")), 8, "not end before its last event: .*=8, last event at 9"),
      ((ADD_A,), 0, "must last some time"),
  )
  def test_refuses(self, events, duration_ms, message):
    with self.assertRaisesRegex(ValueError, message):
      trace_lib.Trace("t", events, duration_ms)
