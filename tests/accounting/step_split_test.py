import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.accounting import account
from bamboo_jax.accounting import step_split

NodeTime = account.NodeTime
_SECS = st.floats(0, 100)


def _split(**times):
  return step_split.split_step(
      step_split.StepTimes(**{"secs": 10.0, "num_nodes": 4, **times})
  )


class SplitStepTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("nothing", {}, NodeTime(bubble=40.0)),
      (
          "healthy",
          dict(useful_secs=20.0, redundant_secs=3, joint_secs=1.0, num_idle=2),
          NodeTime(useful=24.0, redundant=3.0, bubble=13.0, idle=20.0),
      ),
      (
          "refresh_is_redundant",
          dict(useful_secs=20.0, refresh_secs=0.5),
          NodeTime(useful=20.0, redundant=2.0, bubble=18.0),
      ),
      (
          "death",
          dict(useful_secs=20.0, owed_secs=2.0, pause_secs=1, lost_secs=7.0),
          NodeTime(useful=20.0, recovery=6.0, bubble=14.0, lost=7.0),
      ),
      (
          "overlap",
          dict(useful_secs=35.0, joint_secs=1.0, pause_secs=2.0),
          NodeTime(useful=39.0, recovery=1.0),
      ),
  )
  def test_parts(self, times, want):
    self.assertEqual(_split(**times), want)

  @hypothesis.given(
      st.integers(0, 20),
      st.integers(0, 5),
      st.lists(_SECS, min_size=8, max_size=8),
  )
  def test_whole(self, num_nodes, num_idle, times):
    names = [f.name for f in dataclasses.fields(step_split.StepTimes)]
    names = [n for n in names if n.endswith("secs")]
    values = dict(zip(names, times, strict=True))
    got = _split(num_nodes=num_nodes, num_idle=num_idle, **values)
    whole = values["secs"] * (num_nodes + num_idle) + values["lost_secs"]
    self.assertAlmostEqual(got.total, whole)


if __name__ == "__main__":
  absltest.main()
