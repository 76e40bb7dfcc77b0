"""Which rows are refused."""

from absl.testing import parameterized

from bamboo_jax.schedule import checker, holdings as holdings_lib, lines as lines_lib
from tests import schedules

# Two stages, two microbatches: the 1F1B schedule.
_ROWS = {
    0: "0F0 0SA0>1 0F1 0RG0<1 0SA1>1 0B0 0RG1<1 0B1",
    1: "0RA0<0 1F0 1B0 0SG0>0 0RA1<0 1F1 1B1 0SG1>0",
}


def check(rows, holdings=None):
  parsed = {n: tuple(map(schedules.parse, r.split())) for n, r in rows.items()}
  checker.check(parsed, [lines_lib.Line([0, 1], [0, 1])], holdings)


class CheckTest(parameterized.TestCase):

  def test_accepts(self):
    check(_ROWS)
    # Sockets buffer: no sender waits for its receiver.
    check(_ROWS | {0: _ROWS[0].replace("0F1 0RG0<1 0SA1>1", "0F1 0SA1>1 0RG0<1")})

  @parameterized.parameters(
      # Node, what of its row becomes what, and what is said about it.
      (0, (" 0B1", ""), "Node 0 does not run 0B1; its row"),
      (1, (_ROWS[1], ""), "Node 0 has 0RG0<1, but node 1 has no 0SG0>0"),
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
      (0, ("0SA1>1 ", ""), "Node 1 has 0RA1<0, but node 0 has no 0SA1>1"),
      (1, ("0RA0<0 ", ""), "Node 1 cannot run 1F0: the output of stage 0 is not there"),
      (0, ("0B1", "0B1 0SA1>1"), "Node 0 cannot run 0SA1>1: it is done twice"),
      (1, ("0RA0<0", "0RA0<0 0RA0<0"), "Node 1 cannot run 0RA0<0: the output is already there"),
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
    with self.assertRaisesRegex(checker.ScheduleError, message):
      check(_ROWS | {node: _ROWS[node].replace(before, after, 1)})

  def test_refuses_that_a_value_overtakes_another(self):
    rows = {
        0: "0F0 0SA0>1 0F1 0SA1>1 0RG0<1 0B0 0RG1<1 0B1",
        1: "0RA1<0 0RA0<0 1F0 1B0 0SG0>0 1F1 1B1 0SG1>0",
    }
    with self.assertRaisesRegex(
        checker.ScheduleError, "Node 1 cannot run 0RA1<0: 0RA0<0 was sent before"
    ):
      check(rows)

  def test_starts_from_holdings(self):
    both = {(1, 0), (1, 1)}
    holdings = {
        0: holdings_lib.Holdings(
            residuals={(0, 1)}, activations={(0, 0), (0, 1)}, accumulated={(0, 0)}
        ),
        1: holdings_lib.Holdings(gradients={(0, 0), (0, 1)}, accumulated=both),
    }
    check({0: "0RG1<1 0B1", 1: "0SG1>0"}, holdings)
    with self.assertRaisesRegex(checker.ScheduleError, "0B0: it is done"):
      check({0: "0RG0<1 0B0", 1: "0SG0>0"}, holdings)
