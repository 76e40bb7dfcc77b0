"""Tests of where the time of a step went."""

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.accounting import step_split

NodeTime = account_lib.NodeTime
_SECS = st.floats(0, 100)
_TIMES = st.builds(NodeTime, useful=_SECS, redundant=_SECS, recovery=_SECS)


def _split(passes=NodeTime(), joint=NodeTime(), **values):  # noqa: B008
  return step_split.split_step(
      10.0, num_nodes=4, passes=passes, joint=joint, **values
  )


class SplitStepTest(parameterized.TestCase):

  def test_parts(self):
    for got, want in (
        (_split(), NodeTime(bubble=40.0)),
        (
            _split(
                NodeTime(useful=20, redundant=3), NodeTime(useful=1), num_idle=2
            ),
            NodeTime(useful=24.0, redundant=3.0, bubble=13.0, idle=20.0),
        ),
        (
            _split(NodeTime(useful=20.0), NodeTime(redundant=0.5)),
            NodeTime(useful=20.0, redundant=2.0, bubble=18.0),
        ),
        (
            _split(
                NodeTime(useful=20.0, recovery=2.0),
                NodeTime(recovery=1),
                lost_secs=7.0,
            ),
            NodeTime(useful=20.0, recovery=6.0, bubble=14.0, lost=7.0),
        ),
        (  # Parts that overlap: no more than there was.
            _split(NodeTime(useful=35.0), NodeTime(useful=1, recovery=2)),
            NodeTime(useful=39.0, recovery=1.0),
        ),
    ):
      self.assertEqual(got, want)

  @hypothesis.given(_TIMES, _TIMES, st.integers(0, 5), _SECS)
  def test_whole(self, passes, joint, num_idle, lost_secs):
    got = _split(passes, joint, num_idle=num_idle, lost_secs=lost_secs)
    self.assertAlmostEqual(got.total, 10.0 * (4 + num_idle) + lost_secs)
