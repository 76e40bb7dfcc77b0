"""What a schedule takes, and which ones are refused."""

from absl.testing import parameterized

from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
    scheduler,
    timeline as timeline_lib,
)
from tests import schedules

# Two stages, two microbatches: the 1F1B schedule.
_ROWS = {
    0: "0F0 0SA0>1 0F1 0RG0<1 0SA1>1 0B0 0RG1<1 0B1",
    1: "0RA0<0 1F0 1B0 0SG0>0 0RA1<0 1F1 1B1 0SG1>0",
}


def play(rows, costs=None, holdings=None):
  parsed = {n: tuple(map(schedules.parse, r.split())) for n, r in rows.items()}
  return timeline_lib.play(
      instruction_lib.Schedule(parsed),
      [lines_lib.Line([0, 1], [0, 1])],
      costs=costs or schedules.uniform_costs(2),
      holdings=holdings,
  )


class PlayTest(parameterized.TestCase):

  def test_times(self):
    timeline = play(
        _ROWS,
        costs=costs_lib.StageCosts(
            forward_ms=(1.0, 2.0), backward_ms=(2.0, 4.0), transfer_ms=(0.5,)
        ),
    )
    self.assertEqual(
        [
            f"{slot.node} {slot.instruction} {slot.start_ms} {slot.end_ms}"
            for slot in timeline.slots
        ],
        [
            "0 0F0 0.0 1.0",
            "0 0SA0>1 1.0 1.0",  # The sender goes on,
            "0 0F1 1.0 2.0",
            "0 0RG0<1 7.5 8.0",
            "0 0SA1>1 8.0 8.0",
            "0 0B0 8.0 10.0",
            "0 0RG1<1 14.5 15.0",
            "0 0B1 15.0 17.0",
            "1 0RA0<0 1.0 1.5",  # the receiver is blocked.
            "1 1F0 1.5 3.5",
            "1 1B0 3.5 7.5",
            "1 0SG0>0 7.5 7.5",
            "1 0RA1<0 8.0 8.5",
            "1 1F1 8.5 10.5",
            "1 1B1 10.5 14.5",
            "1 0SG1>0 14.5 14.5",
        ],
    )
    self.assertEqual(timeline.span_ms, 17.0)
    self.assertEqual(timeline.bubbles, {0: 1.0 - 6 / 17, 1: 1.0 - 12 / 17})
    self.assertAlmostEqual(timeline.mean_bubble, 1.0 - 9 / 17)

  @parameterized.parameters(
      # Node, what of its row becomes what, and what is said about it.
      (0, (" 0B1", ""), "Node 0 does not run 0B1; its row"),
      (1, (_ROWS[1], ""), "Node 0 waits at 0SA0>1 forever: node 1"),
      (0, ("0F1 ", ""), "Node 0 cannot run 0SA1>1: the output"),
      (1, ("1F1 ", ""), "Node 1 cannot run 1B1: the residuals are not there"),
      (0, ("0F1", "0F1 0F1"), "Node 0 cannot run 0F1: it is done twice"),
      (0, ("0B0", "0B0 0F0"), "Node 0 cannot run 0F0: it is done twice"),
      (1, ("1B1", "1B1 1B1"), "Node 1 cannot run 1B1: it is done twice"),
      (
          0,
          ("0B0 0RG1<1 0B1", "0RG1<1 0B1 0B0"),
          "Node 0 cannot run 0B1: microbatch 0 must be summed before",
      ),
      (
          0,
          ("0RG0<1 0SA1>1 0B0", "0B0 0RG0<1 0SA1>1"),
          "Node 0 cannot run 0B0: the gradient is not there",
      ),
      (
          1,
          ("0RA1<0 1F1", "1F1 0RA1<0"),
          "Node 1 cannot run 1F1: the output of stage 0 is not there",
      ),
      (
          1,
          ("1B0 0SG0>0", "0SG0>0 1B0"),
          "deadlock|Node 1 cannot run 0SG0>0: the gradient is not there",
      ),
      (0, ("0SA1>1 ", ""), "Node 1 waits at 0RA1<0 forever: node 0 has no 0SA1>1 to come"),
      (1, ("0RA0<0 ", ""), "Node 1 cannot run 1F0: the output of stage 0 is not there"),
      (0, ("0B1", "0B1 0SA1>1"), "Node 0 waits at 0SA1>1 forever: node 1 has no 0RA1<0 to come"),
      (0, ("0SA1>1", "0SA1>7"), "Node 0 waits at 0SA1>7 forever: node 7 has no 0RA1<0 to come"),
      (
          0,
          ("0F1 0RG0<1 0SA1>1", "0F1 0SA1>1 0RG0<1"),
          "Deadlock, .*: node 0 at 0SA1>1, node 1 at 0SG0>0",
      ),
      (
          0,
          ("0SA0>1 0F1 0RG0<1", "0F1 0RG0<1 0SA0>1"),
          "Deadlock, .*: node 0 at 0RG0<1, node 1 at 0RA0<0",
      ),
      (0, ("0B1", "0B1 1F0"), "0 cannot run 1F0: stage 1 belongs"),
      (0, ("0B1", "0B1 0RF0"), "0 cannot run 0RF0: the node owns"),
      (1, ("1B1", "0RF1 0RF1 1B1"), "0RF1: it is done twice"),
      (0, ("0B1", "0B1 2F0"), "0 cannot run 2F0: there is no"),
      (0, ("0B1", "0B1 0F2"), "run 0F2: there is no such"),
  )
  def test_refuses(self, node, change, message):
    before, after = change
    self.assertIn(before, _ROWS[node])
    with self.assertRaisesRegex(timeline_lib.ScheduleError, message):
      play(_ROWS | {node: _ROWS[node].replace(before, after, 1)})

  def test_refuses_a_transfer_that_is_received_twice(self):
    rows = {
        0: _ROWS[0].replace("0F1", "0SA0>1 0F1"),
        1: _ROWS[1].replace("0RA0<0", "0RA0<0 0RA0<0"),
    }
    with self.assertRaisesRegex(
        timeline_lib.ScheduleError, "Node 1 cannot run 0RA0<0: the output is already there"
    ):
      play(rows)

  def test_starts_from_holdings(self):
    both = frozenset({(1, 0), (1, 1)})
    holdings = {
        0: holdings_lib.Holdings(
            residuals=frozenset({(0, 1)}),
            activations=frozenset({(0, 0), (0, 1)}),
            accumulated=frozenset({(0, 0)}),
        ),
        1: holdings_lib.Holdings(gradients=frozenset({(0, 0), (0, 1)}), accumulated=both),
    }
    timeline = play({0: "0RG1<1 0B1", 1: "0SG1>0"}, holdings=holdings)
    self.assertEqual(timeline.span_ms, 2.0)
    with self.assertRaisesRegex(timeline_lib.ScheduleError, "0B0: it is done"):
      play({0: "0RG0<1 0B0", 1: "0SG0>0"}, holdings=holdings)


class PeakBytesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.costs = costs_lib.StageCosts(
        forward_ms=(1.0,) * 3,
        backward_ms=(2.0,) * 3,
        transfer_ms=(0.0,) * 2,
        activation_bytes=(1, 10, 100),
        residual_bytes=(1_000, 10_000, 100_000),
        resident_bytes=(1_000_000, 2_000_000, 3_000_000),
    )

  def _peak_bytes(self, owners, in_flight, shadows=None, holdings=None):
    lines = [lines_lib.Line(owners, range(4), in_flight)]
    work = dict(costs=self.costs, holdings=holdings)
    schedule = scheduler.plan_rows(lines, **work, shadows=shadows)
    return dict(timeline_lib.play(schedule, lines, **work).peak_bytes)

  def test_1f1b(self):
    self.assertEqual(
        self._peak_bytes([0, 1, 2], [3, 2, 1]),
        {
            # Residuals of three microbatches; the output of the last of them,
            # which waits to be sent, and the gradient for the first.
            0: 1_000_000 + 3 * 1_000 + 1 + 1,
            # Likewise two.
            1: 2_000_000 + 2 * 10_000 + 10 + 10,
            # Input, residuals and output of one.
            2: 3_000_000 + 100_000 + 10 + 100,
        },
    )

  def test_what_redundant_forwards_keep_is_in_host_memory(self):
    got = self._peak_bytes([0, 1, 2], [3, 2, 1], shadows={1: 0})
    # Residuals of its own stage, and the output of the pass while it runs.
    self.assertEqual(got[0], 1_000_000 + 3 * 1_000 + 10 + 1)

  def test_after_a_failure(self):
    everything = frozenset((1, m) for m in range(4))
    holdings = {
        0: holdings_lib.Holdings(
            activations=frozenset((0, m) for m in range(4)) | everything,
            residuals=everything,
            accumulated=frozenset((0, m) for m in range(4)),
        ),
        2: holdings_lib.Holdings(
            gradients=everything, accumulated=frozenset((2, m) for m in range(4))
        ),
    }
    self.assertEqual(
        self._peak_bytes([0, 0, 2], [3, 2, 1], holdings=holdings),
        {
            # Residuals of redundant forward passes, and one gradient, from
            # which it makes one that it has used before.
            0: 3_000_000 + 4 * 10_000 + 10 + 1,
            # A gradient that it sends again.
            2: 3_000_000 + 10,
        },
    )
