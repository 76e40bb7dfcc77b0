"""What is done to replay a trace."""

from absl.testing import absltest

from bamboo_jax.traces import readers, replay as trace_replay

_TRACE = """
600,add,a/1
600,add,b/1
600,add,a/2
600,notice,a/2
600,remove,b/1
60600,notice,a/1
90600,remove,a/1
90600,add,b/2
120600,add,a/1
"""


def read(text=_TRACE):
  return readers.parse_trace(text, source="trace.csv")


class TraceReplayTest(absltest.TestCase):

  def test_start_and_rest(self):
    got = trace_replay.plan_replay(read(), time_scale=60)
    self.assertEqual(got.first, ("a/1", "a/2"))
    self.assertEqual(
        list(map(str, got.events)),
        ["1000,notice,a/1", "1500,remove,a/1", "1500,add,b/2", "2000,add,a/1"],
    )
    self.assertEqual(got.num_nodes, 4)

  def test_fewer_nodes(self):
    trace = read("0,add,node1\n0,add,node2\n0,add,node3\n60,remove,node2\n")
    got = trace_replay.plan_replay(trace, time_scale=0.5, num_nodes=1)
    self.assertEqual(got.first, ("node2",))
    self.assertEqual(list(map(str, got.events)), ["120,remove,node2"])
    for time_scale in (0.0, -1.0, float("inf"), float("nan")):
      with self.assertRaisesRegex(ValueError, "time_scale must be above 0"):
        trace_replay.plan_replay(read(), time_scale=time_scale)
