"""What sums of gradients take, by method; figures from the formulas."""

import dataclasses

from absl.testing import parameterized
from hypothesis import given, strategies as st

from bamboo_jax import config as config_lib
from bamboo_jax.sim import communication as communication_lib
from tests import profiles

_METHODS = ("ordered", "ring", "tree")


_PROFILE = profiles.make_profile(
    [profiles.make_layer(name, backward_ms=3.0, parameter_bytes=100) for name in "abcd"],
    link_bytes_per_ms=100.0,
    reduce_latency_ms=0.25,
    reduce_bytes_per_ms=100.0,
    measured=False,
)
_STAGES = (_PROFILE.layers[:2], _PROFILE.layers[2:])


def _make(reduction="ring", overlap="none", duplex="full"):
  study = config_lib.StudySection(reduction=reduction, overlap=overlap, duplex=duplex)
  return communication_lib.Communication(study)


class ReduceTest(parameterized.TestCase):

  @parameterized.parameters(
      # 800 bytes are 8 ms of the link. Pipelines, shares, rounds and bytes.
      ("ring", 4, 4, 6 * 0.25 + 2 * 3 / 4 * 8),
      ("ordered", 4, 4, 0.25 + 2 * 3 / 4 * 8),
      ("ordered", 2, 4, 0.25 + 3 * 1 / 2 * 8),
      ("ordered", 1, 2, 0.25 + 8),
      ("tree", 5, 5, 6 * 0.25 + 2 * 8),
      ("ring", 1, 1, 0.0),
  )
  def test_time(self, reduction, num_pipelines, num_shares, expected):
    counts = dict(num_pipelines=num_pipelines, num_shares=num_shares)
    got = _make(reduction).reduce_ms(_PROFILE, 800, **counts)
    self.assertAlmostEqual(got, expected)

  def test_frozen_parameters_are_not_summed(self):
    frozen = [dataclasses.replace(layer, frozen_bytes=100) for layer in _STAGES[0]]
    got = _make().sum_ms(_PROFILE, frozen, num_pipelines=4, num_shares=4)
    self.assertEqual(got, 6 * 0.25)

  @parameterized.parameters((False, 2), (True, 1))
  def test_a_measured_rate_has_both_directions(self, measured, factor):
    profile = dataclasses.replace(_PROFILE, measured=measured, reduce_latency_ms=0.0)
    full, half = (
        _make(duplex=duplex).reduce_ms(profile, 800, num_pipelines=4, num_shares=4)
        for duplex in ("full", "half")
    )
    self.assertAlmostEqual(half, factor * full)

  @given(st.sampled_from(_METHODS), st.integers(2, 100), st.integers(1, 10**9))
  def test_bytes_do_not_grow_with_pipelines(self, reduction, n, num_bytes):
    """No node sends more than twice the gradients, however many sum."""
    profile = dataclasses.replace(_PROFILE, reduce_latency_ms=0.0)
    counts = dict(num_pipelines=n, num_shares=n)
    got = _make(reduction).reduce_ms(profile, num_bytes, **counts)
    self.assertLessEqual(got, 2 * num_bytes / 100.0 * (1 + 1e-9))


class OverlapTest(parameterized.TestCase):

  @parameterized.parameters(
      # Two pipelines: each stage sends 200 bytes in two rounds, 2.5 ms. When
      # the second stage is done, the first has 6 ms to go.
      ("none", (2.5, 2.5), 2.5),
      ("drain", (2.5, 2.5), 2.5),
      # The sum of the last layer, 1.5 ms, is done before the first layer is.
      ("backward", (1.5, 1.5), 1.5),
  )
  def test_two_stages(self, overlap, sums, exposed):
    communication = _make(overlap=overlap)
    counts = dict(num_pipelines=2, num_shares=2)
    sum_ms = tuple(communication.sum_ms(_PROFILE, stage, **counts) for stage in _STAGES)
    self.assertEqual(sum_ms, sums)
    self.assertEqual(communication.exposed_ms(_STAGES, sum_ms), exposed)

  @parameterized.parameters(("none", 8.0), ("drain", 3.0))
  def test_late_stages_hide_more(self, overlap, exposed):
    got = _make(overlap=overlap).exposed_ms(_STAGES, (3.0, 8.0))
    self.assertEqual(got, exposed)

  @parameterized.parameters(("half", 5.0), ("full", 3.0))
  def test_both_directions(self, duplex, expected):
    self.assertEqual(_make(duplex=duplex).exchange_ms(3.0, 2.0), expected)

  def test_bad_method(self):
    with self.assertRaisesRegex(ValueError, "'rign'; did you mean 'ring'"):
      _make("rign")
