"""Rows of a whole step, with waits that are filled ahead or as they occur."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.schedule import failover
from tests import layouts


def make_plans(mode, *, fills, second=(4, 5, 6, 7)):
  rules = layouts.make_rules(4, 2, mode=mode, per_share=8)
  roles = [
      failover.Roles.initial(owners, has_replicas=mode != "none")
      for owners in ((0, 1, 2, 3), second)
  ]
  layout = layouts.make_layout(roles, ((0,), (1,)))
  return layout_lib.StepPlans(rules.plan, fills=fills), layout


class StepPlansTest(parameterized.TestCase):

  @parameterized.parameters(
      ("none", False), ("lazy", False), ("bubble", True), ("budget", True), ("eager", True)
  )
  def test_waits_are_filled_as_they_occur(self, mode, want):
    plans, layout = make_plans(mode, fills=True)
    timelines, filling = plans.whole(layout)
    self.assertEqual([t.num_redundant for t in timelines], [0, 0])
    self.assertEqual(filling is not None, want)
    if not want:
      return
    self.assertEqual(filling.rules.keys(), {*range(8)})
    self.assertEqual([str(i) for i in filling.rules[5].passes], [f"2RF{m}" for m in range(8, 16)])
    placed, _ = make_plans(mode, fills=False)
    ahead, none = placed.whole(layout)
    self.assertEqual(filling.predicted.passes, sum(t.num_redundant for t in ahead))
    self.assertIsNone(none)

  @parameterized.parameters("lazy", "bubble", "budget", "eager")
  def test_pipelines_without_shares_have_no_waits(self, mode):
    plans, layout = make_plans(mode, fills=True)
    gone = dataclasses.replace(
        layout.pipelines[1], roles=failover.Roles((7, 5, 6, 7), {3: 6}), vacant=frozenset({1})
    )
    pipelines = (layout.pipelines[0], gone)
    dropped = layout_lib.Layout(pipelines, ((0,), ()), layout.segments)
    timelines, filling = plans.whole(dropped)
    self.assertLen(timelines, 1)
    if mode != "lazy":
      self.assertEqual(filling.rules.keys(), {0, 1, 2, 3})

  def test_not_if_a_node_is_in_two_pipelines(self):
    plans, joint = make_plans("eager", fills=True, second=(3, 5, 6, 7))
    self.assertIsNone(plans.whole(joint)[1])
