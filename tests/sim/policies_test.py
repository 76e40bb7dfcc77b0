"""Layouts, places and forecasts of policies."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax import base, config as config_lib
from bamboo_jax.sim import forecast as forecast_lib, policies as policies_lib, times as times_lib
from tests import profiles

_WORKLOAD = policies_lib.Workload(
    costs=profiles.make_transformer(), num_stages=4, num_microbatches=8
)


def make_policy(workload=_WORKLOAD, forecast=None, **settings):
  choices = policies_lib.make_choices(
      "mine", policies_lib.Settings(**dict(fold=False) | settings), workload, times_lib.Durations()
  )
  if forecast is None:
    return choices[0]
  return max(choices, key=lambda choice: expect(choice, *forecast))


def expect(policy, live, losses):
  return forecast_lib.expected_samples_per_sec(policy, live=live, losses_per_node_hour=losses)


def sizes(policy, num_nodes):
  pipelines = policy.decider.planner.fresh(range(num_nodes), {})
  return [p.partition.num_stages for p in pipelines]


class LayoutTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("depth", dict(layout="depth"), 11, [4, 4]),
      ("at_most", dict(layout="depth", max_pipelines=1), 11, [4]),
      ("more_stages", dict(layout="depth", overprovision=1.5), 11, [6]),
      ("templates", dict(layout="templates"), 11, [2, 2, 2, 5]),
      ("grid", dict(layout="grid", depths=(0.5, 1.0)), 5, [2, 2]),
  )
  def test_sizes(self, settings, num_nodes, expected):
    self.assertEqual(sizes(make_policy(**settings), num_nodes), expected)

  @parameterized.product(
      layout=("depth", "grid", "templates"),
      settings=(
          # The limit in MiB that suffices, and one that does not.
          ({}, 4.6, 1.6),
          ({"charges_replicas": False}, 1.2, 0.9),
          ({"redundant": config_lib.RedundancySection("none")}, 1.2, 0.9),
      ),
  )
  def test_limit_of_memory(self, layout, settings):
    settings, *limits = settings
    enough, too_little = (
        dataclasses.replace(_WORKLOAD, memory_limit_bytes=int(mib * 2**20)) for mib in limits
    )
    make_policy(layout=layout, workload=enough, **settings)
    with self.assertRaisesRegex(base.InfeasibleError, "Policy 'mine': (No|Pipelines) "):
      make_policy(layout=layout, workload=too_little, **settings)

  @parameterized.parameters(
      ("depth", 3, "3 nodes are too few for a pipeline of 4"),
      ("grid", 1, "1 nodes are too few for a pipeline of 2"),
      ("templates", 3, "3 nodes are too few: 2 pipelines of at least 2"),
  )
  def test_too_few_nodes(self, layout, num_nodes, message):
    with self.assertRaisesRegex(base.InfeasibleError, message):
      sizes(make_policy(layout=layout), num_nodes)

  @parameterized.parameters("depth", "grid", "templates")
  def test_few_nodes_are_folded(self, layout):
    policy = make_policy(layout=layout, fold=True)
    (pipeline,) = policy.decider.planner.fresh([7], {})
    self.assertEqual({*pipeline.roles.owners}, {7})

  def test_whole_pipelines_are_kept(self):
    planner = make_policy(layout="depth").decider.planner
    pipelines = planner.fresh(range(9), {})
    self.assertEqual(planner.adapt(pipelines, range(9)), pipelines)

  @parameterized.parameters(
      (dict(rungs=("shadw",)), "Unknown rung 'shadw'; did you mean 'shadow'"),
      (dict(layout="deep"), "Unknown layout 'deep'; did you mean 'depth'"),
      (dict(overprovision=0.0), "overprovision must be above 0, got 0.0"),
      (dict(placement="spraed"), "Policy 'mine': Unknown placement 'spraed'"),
      (dict(layout="depth", overprovision=5.0), "Policy 'mine': num_stages"),
  )
  def test_bad_settings(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      make_policy(**settings)


class ForecastTest(parameterized.TestCase):

  def test_losses_cost_throughput(self):
    policy = make_policy(layout="depth", rungs=("checkpoint",))
    rates = [expect(policy, {8: 1.0}, n) for n in (0.0, 0.1, 1.0, 1e6)]
    self.assertEqual(rates, sorted(rates, reverse=True))
    self.assertLess(rates[-1], rates[0] / 1000)
    pipelines = policy.decider.planner.fresh(range(8), {})
    cost = policy.decider.times.cost(pipelines)
    self.assertAlmostEqual(rates[0], cost.num_samples / cost.secs)
    self.assertEqual(expect(policy, {3: 1.0}, 0.1), 0.0)  # Too few nodes.

  def test_what_counts_is_when_training_is_possible(self):
    live = {2: 3.0, 4: 1.0}  # Too few nodes on average.
    policy = make_policy(layout="depth", picks_mode=True, forecast=(live, 1.0))
    self.assertTrue(policy.decider.ladder.has_replicas)
    always = expect(policy, {4: 1.0}, 1.0)
    self.assertAlmostEqual(expect(policy, live, 1.0), always / 4)

  @parameterized.parameters(
      # Another pipeline has copies of everything; a single one has shadows.
      (2, 1.0, False),
      (1, 1.0, True),
      (1, 0.0, False),
  )
  def test_shadows_where_they_pay(self, max_pipelines, losses, has_shadows):
    policy = make_policy(
        layout="depth",
        max_pipelines=max_pipelines,
        reroute="stage",
        picks_mode=True,
        forecast=({4 * max_pipelines: 1.0}, losses),
    )
    self.assertEqual(policy.decider.ladder.has_replicas, has_shadows)

  @parameterized.parameters(
      # A pipeline of 6 is faster than one of 4, but has no spares for long.
      ({7: 1.0}, 0.0, 6),
      ({7: 1.0}, 1.0, 4),
      ({8: 1.0}, 0.0, 4),  # Two pipelines of 4.
      ({7: 9.0, 5: 1.0}, 0.0, 4),  # With 5 nodes there is none of 6.
  )
  def test_liveput(self, live, losses, num_stages):
    policy = make_policy(
        layout="liveput",
        rungs=("reconfigure", "checkpoint"),
        depths=(1.0, 1.5),
        forecast=(live, losses),
    )
    self.assertEqual(sizes(policy, 7), [num_stages])

  def test_liveput_leaves_out_what_does_not_fit(self):
    policy = make_policy(
        layout="liveput",
        depths=(0.5, 1.0),
        charges_replicas=False,
        workload=dataclasses.replace(_WORKLOAD, memory_limit_bytes=2**21),
        forecast=({8: 1.0}, 0.0),
    )
    self.assertEqual(sizes(policy, 8), [4, 4])
