"""What happens to nodes, at which time of a trace."""

from absl.testing import absltest

from bamboo_jax.local_cluster import trace_player
from bamboo_jax.traces import readers
from bamboo_jax.traces import replay

_TRACE = """
0,add,a/1
0,add,b/1
1000,notice,a/1
2000,remove,a/1
2000,add,a/2
3000,add,a/1
4000,remove,a/2
"""


class TracePlayerTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.done = []
    self.num_started = 2
    trace = readers.parse_events(_TRACE, source="trace.csv")
    self.player = trace_player.TracePlayer(
        replay.plan_replay(trace, time_scale=10),
        ["n0", "n1"],
        start_node=self.start,
        kill_node=lambda name: self.done.append(f"kill {name}"),
        give_notice=lambda name: self.done.append(f"notice {name}"),
        say=lambda text: None,
    )

  def start(self, zone):
    self.done.append(f"start in {zone}")
    self.num_started += 1
    return f"n{self.num_started - 1}"

  def test_events_in_order_of_time(self):
    done = {}
    for now in (50.0, 50.09, 50.1, 50.2, 50.25, 50.31, 51.0):
      self.player.advance(now)
      done[now], self.done = self.done, []
    self.assertEqual(
        done,
        {
            50.0: [],
            50.09: [],
            50.1: ["notice n0"],
            50.2: ["kill n0", "start in a"],
            50.25: [],
            50.31: ["start in a"],
            51.0: ["kill n2"],
        },
    )


if __name__ == "__main__":
  absltest.main()
