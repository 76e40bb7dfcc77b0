"""Steps of a small model, predicted by the planners of real runs."""

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import placement as placement_lib
from bamboo_jax.schedule import failover
from bamboo_jax.sim import communication as communication_lib, speed
from tests import profiles

_PROFILE = profiles.make_transformer(microbatch_size=2)
_PARTITION = profiles.split(_PROFILE.layers, 4)


def make_speed(mode="none", num_microbatches=12, reroute="shares", **communication):
  return speed.ProfileSpeed(
      _PROFILE,
      num_microbatches=num_microbatches,
      microbatch_size=2,
      redundant=config_lib.RedundancySection(mode),
      reroute=reroute,
      communication=communication_lib.Communication(config_lib.StudySection(**communication)),
  )


def make_pipelines(count, *, replicas=True):
  return placement_lib.make_pipelines([_PARTITION] * count, range(100, 100 + 4 * count), replicas)


def lose(pipeline, node):
  roles, _ = failover.fail_over(pipeline.roles, {}, {node})
  return pipelines_lib.Pipeline(pipeline.partition, roles)


def vacate(pipeline, *stages):
  return pipelines_lib.Pipeline(pipeline.partition, pipeline.roles, frozenset(stages))


class StepTest(parameterized.TestCase):

  def test_a_whole_step(self):
    pipelines = make_pipelines(3, replicas=False)
    cost = make_speed().step(pipelines, drops=False)
    time = make_speed().predictor.predict(pipelines)
    self.assertAlmostEqual(cost.secs, time.total_ms / 1e3)
    self.assertEqual((cost.num_samples, cost.num_dropped), (24, 0))
    self.assertEqual(cost.redundant, 0.0)
    passes_ms = 12 * sum(c.forward_ms + c.backward_ms for c in _PROFILE.layers)
    joint_ms = time.norm_ms + time.update_ms
    self.assertAlmostEqual(cost.useful, (passes_ms + 12 * joint_ms) / (12 * time.total_ms))

  @parameterized.parameters("ring", "ordered", "tree")
  def test_sums_are_communication(self, reduction):
    pipelines = make_pipelines(3, replicas=False)
    speeds = make_speed(reduction=reduction)
    cost = speeds.step(pipelines, drops=False)
    sums_ms = speeds.predictor.sum_ms(_PARTITION, num_pipelines=3)
    self.assertLen(sums_ms, 4)
    self.assertAlmostEqual(cost.communication * 12 * cost.secs * 1e3, 3 * sum(sums_ms))
    alone = speeds.step(pipelines[:1], drops=False)
    self.assertEqual(alone.communication, 0.0)

  def test_redundancy_shows(self):
    pipelines = make_pipelines(2)
    shares = {
        mode: make_speed(mode).step(pipelines, drops=False).redundant
        for mode in ("lazy", "bubble", "eager")
    }
    self.assertLess(0.0, shares["lazy"])  # Replicas are refreshed.
    self.assertLess(shares["lazy"], shares["bubble"])

  def test_nodes_with_two_stages_are_slower(self):
    first, second = make_pipelines(2)
    whole = make_speed("lazy").step([first, second], drops=False)
    slow = make_speed("lazy").step([lose(first, 101), second], drops=False)
    self.assertLess(whole.secs, slow.secs)
    self.assertLess(slow.secs, 2 * whole.secs)

  def test_peers_share_a_vacant_stage(self):
    speeds = make_speed()
    first, second, third = pipelines = make_pipelines(3, replicas=False)
    lacking = [vacate(first, 1), second, third]
    secs = [
        speeds.step(some, drops=False).secs
        for some in (
            pipelines,
            lacking,
            [vacate(first, 1, 2), second, third],
            # Two others still share each stage.
            [vacate(first, 1), vacate(second, 2), third],
            [vacate(first, 1), vacate(second, 1), third],
        )
    ]
    self.assertLess(secs[0], secs[1])
    self.assertAlmostEqual(secs[1], secs[2])
    self.assertAlmostEqual(secs[1], secs[3])
    self.assertLess(secs[3], secs[4])
    for drops, samples in ((False, (24, 0)), (True, (16, 8))):
      cost = speeds.step(lacking, drops=drops)
      self.assertEqual((cost.num_samples, cost.num_dropped), samples)

  def test_numbers_of_nodes_do_not_matter(self):
    speeds = make_speed("lazy")
    first, second = make_pipelines(2)
    other = first.renumbered({100: 7, 101: 3, 102: 5, 103: 1})
    cost = speeds.step([first, second], drops=False)
    self.assertEqual(speeds.step([other, second], drops=False), cost)


class FinishTest(parameterized.TestCase):

  def test_shadows(self):
    first, second = before = make_pipelines(2)
    speeds = make_speed("bubble")
    step_secs = speeds.step(before, drops=False).secs
    one = speeds.finish("shadow", before, [lose(first, 101), second])
    self.assertBetween(one.secs, 0.05 * step_secs, step_secs)
    self.assertEqual(one.left_share, 0.0)
    both = [lose(first, 101), lose(second, 105)]
    self.assertEqual(speeds.finish("shadow", before, both), one)
    two = [lose(lose(first, 101), 103), second]
    self.assertGreater(speeds.finish("shadow", before, two).secs, one.secs)

  def test_what_is_owed_is_dealt_by_share(self):
    first, second = before = make_pipelines(2)
    after = [lose(first, 101), second]
    alone, dealt = (
        make_speed("bubble", reroute=reroute).finish("shadow", before, after)
        for reroute in ("stage", "shares")
    )
    self.assertBetween(dealt.secs, 0.2 * alone.secs, 0.6 * alone.secs)

  def test_peers(self):
    three, two = (make_pipelines(n, replicas=False) for n in (3, 2))
    speeds = make_speed()
    for before, after, num_owed in (
        # Each of two others computes 2 of the 4 microbatches of a stage.
        (three, [vacate(three[0], 1), *three[1:]], 2),
        # 12 microbatches in all; those of one pipeline go to the others.
        (three, three[1:], 2),
        (two, two[1:], 6),
    ):
      delay = speeds.finish("reroute", before, after)
      owed_ms = speeds.predictor.compute_ms(_PARTITION, num_owed)
      self.assertAlmostEqual(delay.secs, owed_ms / 1e3)


class TransformerTest(parameterized.TestCase):

  def test_costs(self):
    names = [layer.name for layer in _PROFILE.layers]
    self.assertLen(names, 10)
    self.assertEqual(names[:2], ["embed", "block_00.attention"])
    mlp = _PROFILE.layers[2]
    self.assertEqual(mlp.parameter_bytes, 4 * 8 * 64**2)
    # 64 tokens, two operations for each parameter and token.
    self.assertAlmostEqual(mlp.forward_ms, 1e3 * 64 * 2 * 8 * 64**2 / 1e9)
    self.assertAlmostEqual(mlp.backward_ms, 3 * mlp.forward_ms)
    self.assertFalse(_PROFILE.measured)
