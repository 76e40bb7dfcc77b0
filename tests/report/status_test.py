"""What is shown of a run."""

from absl.testing import absltest

from bamboo_jax.cluster import views
from bamboo_jax.report import status
from tests import members
from tests.recovery import durations_test

member = members.member


def layout(*roles):
  """Returns pipelines of two layers, as a member reports them."""
  partition = {"bounds": [0, 1, 2]}
  return {
      "pipelines": [{"partition": partition, "roles": r} for r in roles],
      "shares": [[i] for i, _ in enumerate(roles)],
      "segments": [0, 1, 2],
      "members": [],  # For newcomers.
  }


class StatusTest(absltest.TestCase):

  def render(self, *members, leaving=(), registered=(), **known):
    view = views.View(4, members, "n1 left: SIGKILL", leaving)
    run = status.StoredRun("run", 9, view, registered, known, {"name": "mine"})
    return status.render(run, now_secs=100.5).splitlines()

  def test_training(self):
    here = member(0, "a"), member(2, "b"), member(3, "a"), member(4, "b")
    got = self.render(
        *here,
        member(5, "c"),
        leaving=(3,),
        registered=[*here, member(6, "c")],
        at_secs=100.0,
        steps=5,
        layout=layout(
            {"owners": [0, 2], "shadows": {"0": 2, "1": 0}}, {"owners": [3, 4], "shadows": {"0": 4}}
        ),
        recoveries=[durations_test.RECOVERY],
        slow=[
            {"step": 4, "node": "n2", "host": "h", "factor": 4.9},
            {"step": 7, "node": "n3", "host": "h", "factor": 2},
        ],
    )
    self.assertEqual(
        got,
        [
            "run=run config=mine view=4 step=5 num_steps=9 told_secs_ago=0.5",
            "reason: n1 left: SIGKILL",
            "stage 0/0: n0 (a), shadow n2 (b)",
            "stage 0/1: n2 (b), shadow n0 (a)",
            "stage 1/0: n3 (a), shadow n4 (b)",
            "stage 1/1: n4 (b), shadow none",
            "spares: n5 (c)",
            "leaving: n3 (a)",
            "joining, or just gone: n6 (c)",
            "Any one zone or any two nodes may fail. "
            "If zone a or c fails, shadows take over at once.",
            "recovered in step 3: n1 (stage 0/1) died; its shadow n2 took over "
            "(noticed after: unknown, not heard for 0.40 s, agreed in 0.25 s, "
            "redone in 1.00 s, pause 2.50 s)",
            "slow: n2 on h, 4.9 times as slow as it should be in step 4",
            "slow: n3 on h, 2 times as slow as it should be in step 7",
        ],
    )

  def test_before_the_first_step(self):
    self.assertEqual(
        self.render(registered=[member(1, "b")]),
        [
            "run=run config=mine view=4",
            "reason: n1 left: SIGKILL",
            "spares: none",
            "leaving: none",
            "joining, or just gone: n1 (b)",
            "What may fail is not known while training stands still.",
        ],
    )

  def test_a_death_that_is_not_dealt_with_yet(self):
    told = layout({"owners": [0, 1], "shadows": {"0": 1, "1": 0}})
    got = self.render(member(0, "a"), layout=told)
    self.assertIn("stage 0/1: node 1 (gone), shadow n0 (a)", got)
    self.assertIn("What may fail is not known while training stands still.", got)
    got = self.render(member(1, "b"), layout={"restart": True})  # It waits for nodes.
    self.assertIn("spares: n1 (b)", got)
