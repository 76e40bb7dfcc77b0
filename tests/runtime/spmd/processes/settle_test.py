"""Transfers that were interrupted come to an end, whatever has begun."""

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.runtime.spmd.processes import settle
from bamboo_jax.schedule import channel as channel_lib
from tests import members


def begun(*channels, since=(1, 0)):
  return channel_lib.Begun(since, tuple(map(members.channel, channels)))


def run_queues(queues):
  """Returns what is left once no transfer can run: all ends must be at it."""
  queues = {node: list(queue) for node, queue in queues.items()}
  while True:
    heads = {queue[0] for queue in queues.values() if queue}
    ready = [c for c in heads if all(queues[n][:1] == [c] for n in c.nodes)]
    if not ready:
      return {node: queue for node, queue in queues.items() if queue}
    for node in ready[0].nodes:
      queues[node].pop(0)


@st.composite
def interrupted(draw):
  """Draws how far each node got in its projection of one order."""
  nodes = range(draw(st.integers(2, 5)))
  pairs = [(a, b) for a in nodes for b in nodes if a != b]
  channels = [channel_lib.Channel("x", p) for p in pairs]
  channels.append(channel_lib.Channel("sum", tuple(nodes), (0,)))
  order = draw(st.lists(st.sampled_from(channels), max_size=20))
  rows = {n: [c for c in order if n in c.nodes] for n in nodes}
  rows = {n: row[: draw(st.integers(0, len(row)))] for n, row in rows.items()}
  dead = draw(st.sets(st.sampled_from(nodes), max_size=len(nodes) - 1))
  return {n: row for n, row in rows.items() if n not in dead}


class SettleTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("level", {0: begun("a@0,1"), 1: begun("a@0,1")}, {0: (), 1: ()}),
      ("behind", {0: begun("a@0,1"), 1: begun()}, {0: (), 1: ("a@0,1",)}),
      ("twice", {0: begun("a@0,1", "a@0,1"), 1: begun("a@0,1")}, {0: (), 1: ("a@0,1",)}),
      ("dead_end", {0: begun("a@0,2"), 1: begun()}, {0: (), 1: ()}),
      (
          "in_the_order_of_the_others",
          {0: begun("p@0,2", "q@0,1"), 1: begun(), 2: begun("w@2,1")},
          {0: (), 1: ("w@2,1", "q@0,1"), 2: ("p@0,2",)},
      ),
      (
          "after_what_it_has_begun",
          {0: begun("b@0,1", "c@0,2"), 1: begun("d@1,3", "d@1,2"), 2: begun(), 3: begun()},
          {0: (), 1: ("b@0,1",), 2: ("c@0,2", "d@1,2"), 3: ("d@1,3",)},
      ),
      (
          "level_long_ago",
          {0: begun("a@0,1", since=(1, 5)), 1: begun("b@0,1", since=(1, 4))},
          {0: (), 1: ("a@0,1",)},
      ),
  )
  def test_unanswered(self, states, want):
    got = settle.find_unanswered(states)
    self.assertEqual(
        {n: set(c) for n, c in got.items()},
        {n: set(map(members.channel, c)) for n, c in want.items()},
    )
    if all(s.since == (1, 0) for s in states.values()):
      live = states.keys()
      queues = {n: [c for c in s.channels if set(c.nodes) <= live] for n, s in states.items()}
      left = run_queues({n: [*q, *got[n]] for n, q in queues.items()})
      self.assertEqual(left, {})

  @hypothesis.given(interrupted())
  def test_nobody_waits_for_ever(self, rows):
    live = rows.keys()
    states = {n: channel_lib.Begun((1, 0), tuple(row)) for n, row in rows.items()}
    unanswered = settle.find_unanswered(states)
    queues = {}
    for node, row in rows.items():
      own = [c for c in row if set(c.nodes) <= live]
      queues[node] = [*own, *unanswered[node]]
      self.assertTrue(all(node in c.nodes for c in unanswered[node]))
    self.assertEqual(run_queues(queues), {})
