"""Layouts, places and forecasts of policies."""

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.sim import build
from tests import policies, profiles


def make_policy(forecast=None, **changes):
  config = policies.make_config(num_microbatches=8, **dict(recovery__fold=False) | changes)
  choices = build.make_choices("mine", config, profiles.make_transformer())
  if forecast is None:
    return choices[0]
  return max(choices, key=lambda choice: expect(choice, *forecast))


def expect(policy, live, losses):
  return build.expected_samples_per_sec(policy, live=live, losses_per_node_hour=losses)


def sizes(policy, num_nodes):
  pipelines = policy.planner.fresh(range(num_nodes), {})
  return [p.partition.num_stages for p in pipelines]


class LayoutTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("depth", dict(pipeline__layout="depth"), 11, [4, 4]),
      ("at_most", dict(pipeline__layout="depth", study__max_pipelines=1), 11, [4]),
      ("more_stages", dict(pipeline__layout="depth", study__overprovision=1.5), 11, [6]),
      ("templates", dict(pipeline__layout="templates"), 11, [2, 2, 2, 5]),
      ("grid", dict(study__depths=(0.5, 1.0)), 5, [2, 2]),
  )
  def test_sizes(self, settings, num_nodes, expected):
    self.assertEqual(sizes(make_policy(**settings), num_nodes), expected)

  @parameterized.product(
      layout=("depth", "grid", "templates"),
      settings=(
          # The limit in MiB that suffices, and one that does not.
          ({}, 4.6, 1.6),
          ({"study__charges_replicas": False}, 1.2, 0.9),
          ({"redundancy__mode": "none"}, 1.2, 0.9),
      ),
  )
  def test_limit_of_memory(self, layout, settings):
    settings, *limits = settings
    enough, too_little = (
        dict(settings, pipeline__layout=layout, plan__memory_limit_gib=mib / 2**10)
        for mib in limits
    )
    make_policy(**enough)
    with self.assertRaisesRegex(base.InfeasibleError, "Policy 'mine': (No|Pipelines) "):
      make_policy(**too_little)

  @parameterized.parameters("depth", "grid", "templates")
  def test_few_nodes_are_folded(self, layout):
    policy = make_policy(pipeline__layout=layout, recovery__fold=True)
    (pipeline,) = policy.planner.fresh([7], {})
    self.assertEqual({*pipeline.roles.owners}, {7})
    with self.assertRaisesRegex(base.InfeasibleError, "^Too few nodes"):
      sizes(make_policy(pipeline__layout=layout), 1)

  @parameterized.parameters(
      (dict(study__layout="liveputt"), "did you mean 'liveput'"),
      (dict(study__overprovision=0.0), "config.study.overprovision must be above 0, got 0.0"),
      (dict(study__duplex="ful"), "value of config.study.duplex 'ful'; did you mean 'full'"),
      (dict(pipeline__layout="depth", study__overprovision=5.0), "Policy 'mine': num_stages"),
  )
  def test_bad_settings(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      make_policy(**settings)


class ForecastTest(parameterized.TestCase):

  def test_losses_cost_throughput(self):
    policy = make_policy(pipeline__layout="depth", rungs=("checkpoint",))
    rates = [expect(policy, {8: 1.0}, n) for n in (0.0, 0.1, 1.0, 1e6)]
    self.assertEqual(rates, sorted(rates, reverse=True))
    self.assertLess(rates[-1], rates[0] / 1000)
    pipelines = policy.planner.fresh(range(8), {})
    cost = policy.times.cost(pipelines)
    self.assertAlmostEqual(rates[0], cost.num_samples / cost.secs)
    self.assertEqual(expect(policy, {3: 1.0}, 0.1), 0.0)  # Too few nodes.

  def test_what_counts_is_when_training_is_possible(self):
    live = {2: 3.0, 4: 1.0}  # Too few nodes on average.
    policy = make_policy(pipeline__layout="depth", study__picks_mode=True, forecast=(live, 1.0))
    self.assertTrue(policy.ladder.has_replicas)
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
        pipeline__layout="depth",
        study__max_pipelines=max_pipelines,
        study__reroute="stage",
        study__picks_mode=True,
        forecast=({4 * max_pipelines: 1.0}, losses),
    )
    self.assertEqual(policy.ladder.has_replicas, has_shadows)

  @parameterized.parameters(
      # A pipeline of 6 is faster than one of 4, but has no spares for long.
      ({7: 1.0}, 0.0, 6),
      ({7: 1.0}, 1.0, 4),
      ({8: 1.0}, 0.0, 4),  # Two pipelines of 4.
      ({7: 9.0, 5: 1.0}, 0.0, 4),  # With 5 nodes there is none of 6.
  )
  def test_liveput(self, live, losses, num_stages):
    policy = make_policy(
        study__layout="liveput",
        rungs=("reconfigure", "checkpoint"),
        study__depths=(1.0, 1.5),
        forecast=(live, losses),
    )
    self.assertEqual(sizes(policy, 7), [num_stages])

  def test_liveput_leaves_out_what_does_not_fit(self):
    policy = make_policy(
        study__layout="liveput",
        study__depths=(0.5, 1.0),
        study__charges_replicas=False,
        plan__memory_limit_gib=2 / 2**10,
        forecast=({8: 1.0}, 0.0),
    )
    self.assertEqual(sizes(policy, 8), [4, 4])
