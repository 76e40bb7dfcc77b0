"""Spans that are played, and those that are told from fewer microbatches."""

from absl.testing import parameterized
from hypothesis import given, settings, strategies as st

from bamboo_jax import config as config_lib
from bamboo_jax.plan import (
    partition as partition_lib,
    pipelines as pipelines_lib,
    predictor as predictor_lib,
)
from bamboo_jax.schedule import failover
from tests import profiles


def make_predictor(mode="none", *, extrapolate=False, num_blocks=6, rate=1e9, group=1):
  return predictor_lib.Predictor(
      profiles.make_transformer(num_blocks=num_blocks, microbatch_size=2, link_bytes_per_sec=rate),
      num_microbatches=64,
      redundant=config_lib.RedundancySection(mode),
      extrapolate=extrapolate,
      group=group,
  )


def split(predictor, num_stages):
  return partition_lib.split_layers(predictor.profile.layers, num_stages)


class ComputeTest(parameterized.TestCase):

  @given(
      st.integers(1, 8),
      st.integers(1, 20),
      st.sampled_from(("none", "lazy", "bubble", "eager")),
      st.booleans(),
  )
  @settings(max_examples=40, deadline=None)
  def test_span_is_that_of_the_rows(self, num_stages, count, mode, is_lost):
    predictor = make_predictor(mode)
    partition = split(predictor, num_stages)
    roles = failover.Roles.initial(range(num_stages), has_replicas=mode != "none")
    if is_lost and roles.shadows:
      roles, _ = failover.fail_over(roles, {num_stages // 2})
    self.assertEqual(
        predictor.compute_ms(partition, count, roles),
        predictor.plan(partition, count, roles).timeline.span_ms,
    )

  @given(
      st.integers(1, 8),
      st.integers(1, 40),
      st.sampled_from((1e9, 1e7, 1e6)),
      st.sampled_from((3, 6, 12)),
  )
  @settings(max_examples=60, deadline=None)
  def test_extrapolated(self, num_stages, count, rate, num_blocks):
    """Also where stages are so uneven that waits settle late."""
    exact, fast = (
        make_predictor(rate=rate, num_blocks=num_blocks, extrapolate=extrapolate)
        for extrapolate in (False, True)
    )
    partition = split(exact, num_stages)
    self.assertAlmostEqual(
        fast.compute_ms(partition, count) / exact.compute_ms(partition, count), 1.0, delta=1e-6
    )


class GroupsTest(parameterized.TestCase):
  """Pipelines of two and of six stages, of which the latter is faster."""

  def setUp(self):
    super().setUp()
    self.predictor = make_predictor(group=16)
    self.pipelines = [
        pipelines_lib.Pipeline(split(self.predictor, depth), failover.Roles(tuple(range(depth))))
        for depth in (2, 6)
    ]

  def test_groups_stay_together(self):
    self.assertEqual(self.predictor.split(self.pipelines), (16, 48))
    fine = make_predictor().split(self.pipelines)
    self.assertEqual(sum(fine), 64)
    self.assertGreater(fine[0] % 16, 0)

  def test_enough_groups(self):
    find = lambda slack: self.predictor.enough_groups(
        self.pipelines, choices=(2, 4, 8, 16, 32, 64), slack=slack
    )
    self.assertEqual(find(9.0), 2)
    self.assertEqual(find(0.0), 64)
    few = find(0.05)
    self.assertBetween(few, 4, 32)
    ends = lambda count: max(
        self.predictor.compute_ms(p.partition, n)
        for p, n in zip(
            self.pipelines, make_predictor(group=64 // count).split(self.pipelines), strict=True
        )
    )
    self.assertLessEqual(ends(few), 1.05 * ends(64))
    self.assertGreater(ends(few // 2), 1.05 * ends(64))
