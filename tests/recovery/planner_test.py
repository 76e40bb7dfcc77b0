"""Shapes, places and times together, and who gets which place."""

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.schedule import failover
from tests import layouts


def make_planner(**recovery):
  return layouts.make_rules(4, 2, **recovery).planner


class PlannerTest(parameterized.TestCase):

  @parameterized.parameters(
      ("901234567", "lazy", "9012", "3456"), ("31", "lazy", "3311"), ("31", "none", "3311")
  )
  def test_fresh(self, nodes, mode, *want):
    pipelines = make_planner(mode=mode).fresh(layouts.nodes(nodes), {})
    self.assertEqual(layouts.owners(pipelines), [*want])
    self.assertLen(pipelines[0].roles.shadows, 4 if mode == "lazy" else 0)

  @parameterized.named_parameters(
      ("another", "0123", "01234567", "0123", "4567"),
      ("few", "0123", "30", "0033"),
      ("still_few", "3399", "93", "3399"),
      ("enough_again", "3399", "3945", "3495"),
  )
  def test_adapt(self, before, nodes, *want):
    before = layouts.make_pipelines([failover.Roles.initial(layouts.nodes(before))])
    after = make_planner().adapt(before, layouts.nodes(nodes))
    self.assertEqual(layouts.owners(after), [*want])

  def test_times(self):
    planner = make_planner()
    one, two = planner.fresh(range(4), {}), planner.fresh(range(8), {})
    times = planner.times
    self.assertLess(times.step_secs(two), times.step_secs(one))
    self.assertEqual(times.pause_secs("reconfigure", one, one), 0.0)
    self.assertEqual(times.pause_secs("checkpoint", one, two), 0.0)
    # A node gets the state of two layers, each in 3.1 ms, from different ones.
    self.assertAlmostEqual(1e3 * times.pause_secs("reconfigure", one, two), 6.2)

  def test_nobody_or_too_few(self):
    for nodes, fold in (([], True), ([0, 1, 2], False)):
      planner = make_planner(fold=fold)
      with self.assertRaisesRegex(base.InfeasibleError, "Too few nodes"):
        planner.fresh(nodes, {})
      with self.assertRaisesRegex(base.InfeasibleError, "Too few nodes"):
        planner.adapt(make_planner().fresh(range(4), {}), nodes)
