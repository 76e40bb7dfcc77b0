from absl.testing import parameterized

from bamboo_jax.schedule import timeline as timeline_lib
from tests import schedules


class LinearizeTest(parameterized.TestCase):

  @parameterized.parameters(
      (  # Node 0 starts 0F1 while node 1 receives.
          [([0, 1], range(2), 0.5)],
          "0:0F0 0:0SA0>1 0:0F1 1:0RA0<0 1:1F0 1:1B0 1:0SG0>0 0:0RG0<1 0:0SA1>1"
          " 0:0B0 1:0RA1<0 1:1F1 1:1B1 1:0SG1>0 0:0RG1<1 0:0B1",
      ),
      (  # Pipelines take turns.
          [([2, 3], [1], 0.0), ([0, 1], [0], 0.0)],
          "0:0F0 2:0F1 0:0SA0>1 2:0SA1>3 1:0RA0<0 1:1F0 3:0RA1<2 3:1F1"
          " 1:1B0 3:1B1 1:0SG0>0 3:0SG1>2 0:0RG0<1 0:0B0 2:0RG1<3 2:0B1",
      ),
      (  # Node 1 receives from 1 to 3.5; 2F2 starts at 3, and so before it.
          [([0, 1], [0], 2.5), ([2], [1, 2, 3], 0.0)],
          "0:0F0 2:0F1 2:0B1 0:0SA0>1 2:0F2 1:0RA0<0 1:1F0 2:0B2 1:1B0 2:0F3"
          " 1:0SG0>0 2:0B3 0:0RG0<1 0:0B0",
      ),
  )
  def test_order(self, timelines, want):
    order = timeline_lib.linearize([schedules.make_timeline(*t) for t in timelines])
    self.assertEqual(" ".join(f"{node}:{i}" for node, i in order), want)

  def test_keeps_rows_and_sends_before_receives(self):
    timelines = [
        schedules.make_timeline([8 * k + s for s in range(6)], [k, k + 9], ms)
        for k, ms in enumerate((0.0, 0.1, 3.0))
    ]
    order = timeline_lib.linearize(timelines)
    sent = set()
    for node, i in order:
      ends = (i.op.value[-1], i.stage, i.microbatch)
      if i.is_send:
        sent.add((*ends, node, i.peer))
      elif i.is_receive:
        self.assertIn((*ends, i.peer, node), sent)
    for timeline in timelines:
      for node in timeline.bubbles:
        self.assertEqual(
            [i for n, i in order if n == node],
            [s.instruction for s in timeline.slots if s.node == node],
        )

  def test_refuses_a_node_in_two_pipelines(self):
    timeline = schedules.make_timeline([3, 4], [0], transfer_ms=0.0)
    with self.assertRaisesRegex(ValueError, r"Nodes \[3, 4\] are in two"):
      timeline_lib.linearize([timeline, timeline])
