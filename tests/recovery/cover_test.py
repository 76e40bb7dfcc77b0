"""Covers and splits of microbatches are compared with the best of all."""

import itertools

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import (
    batch_split,
    partition as partition_lib,
    pipelines as pipelines_lib,
    predictor as predictor_lib,
)
from bamboo_jax.recovery import shapes as shapes_lib
from bamboo_jax.schedule import failover
from tests import profiles

_MIB = 2**20


def _profile(forwards, *, parameters=None, **changes):
  parameters = parameters or [1] * len(forwards)
  links = dict(
      link_latency_ms=0.125,
      link_bytes_per_ms=8.0 * _MIB,
      reduce_latency_ms=0.25,
      reduce_bytes_per_ms=16.0 * _MIB,
  )
  layers = [
      profiles.make_layer(
          f"layer_{i}",
          forward_ms=forward,
          backward_ms=2.0 * forward,
          update_ms=0.25 * parameter,
          parameter_bytes=parameter * _MIB,
          slot_bytes=2 * parameter * _MIB,
          activation_bytes=_MIB,
          residual_bytes=_MIB,
          norm_ms=0.125 * parameter,
      )
      for i, (forward, parameter) in enumerate(zip(forwards, parameters, strict=True))
  ]
  return profiles.make_profile(layers, **(links | changes))


def _splits(total, num):
  """Yields all ways to give `total` to `num`, at least one to each."""
  for cuts in itertools.combinations(range(1, total), num - 1):
    yield [b - a for a, b in itertools.pairwise((0, *cuts, total))]


class MakespanTest(parameterized.TestCase):

  @hypothesis.settings(max_examples=100)
  @hypothesis.given(
      strategies.lists(
          # What each microbatch adds to the time of a pipeline.
          strategies.lists(strategies.integers(1, 5), min_size=9, max_size=9),
          min_size=1,
          max_size=4,
      ),
      strategies.integers(0, 5),
  )
  def test_is_as_early_as_can_be(self, added, more):
    finish = [lambda m, a=a: sum(a[:m]) for a in added]
    total = len(added) + more

    def makespan_of(counts):
      return max(f(m) for f, m in zip(finish, counts, strict=True))

    got = batch_split.split_by_makespan(
        total,
        [batch_split.PipelinePace(f, least_ms=min(a)) for f, a in zip(finish, added, strict=True)],
    )
    self.assertEqual(sum(got), total)
    self.assertGreaterEqual(min(got), 1)
    self.assertEqual(makespan_of(got), min(map(makespan_of, _splits(total, len(added)))))

  @parameterized.named_parameters(("none", 0), ("too_many", 4))
  def test_refuses(self, num_pipelines):
    message = f"3 microbatches cannot be given to {num_pipelines} pipelines"
    with self.assertRaisesRegex(base.InfeasibleError, message):
      batch_split.split_by_makespan(3, [batch_split.PipelinePace(float, 1.0)] * num_pipelines)
    with self.assertRaisesRegex(base.InfeasibleError, message):
      batch_split.split_evenly(3, num_pipelines)

  def test_evenly(self):
    self.assertEqual(batch_split.split_evenly(7, 3), (3, 2, 2))

  def test_asks_for_few_times(self):
    asked = set()

    def finish_ms(m):
      asked.add(m)
      return 100.0 + m

    batch_split.split_by_makespan(10_000, [batch_split.PipelinePace(finish_ms, 1.0)] * 2)
    self.assertLess(len(asked), 150)


class PredictorTest(parameterized.TestCase):

  @parameterized.product(num_stages=[1, 2, 3], num_pipelines=[1, 2])
  def test_equal_pipelines_take_what_the_plan_says(self, num_stages, num_pipelines):
    profile = _profile([1.0, 2.0, 1.0, 3.0])
    plan = profiles.make_plan(
        profile, num_stages=num_stages, num_pipelines=num_pipelines, num_microbatches=4
    )
    predictor = predictor_lib.Predictor(profile, num_microbatches=4 * num_pipelines)
    got = predictor.predict(
        [pipelines_lib.Pipeline(plan.partition, failover.Roles(owners)) for owners in plan.owners]
    )
    self.assertEqual(got, plan.step_time)

  def test_vacant_pipelines_do_not_help(self):
    profile = _profile([1.0, 1.0])
    partition = partition_lib.Partition((0, 1, 2))
    predictor = predictor_lib.Predictor(profile, num_microbatches=4)
    whole = pipelines_lib.Pipeline(partition, failover.Roles((0, 1)))
    hurt = pipelines_lib.Pipeline(partition, failover.Roles((2, 3)), frozenset({0}))
    self.assertEqual(predictor.predict([whole, hurt]), predictor.predict([whole]))
    with self.assertRaisesRegex(base.InfeasibleError, "given to 0 pipelines"):
      predictor.predict([hurt])

  def test_phases_take_as_long_as_where_they_take_longest(self):
    # One layer has the parameters; the deep pipeline splits the others.
    profile = _profile([4.0, 4.0, 1.0], parameters=[1, 1, 9])
    predictor = predictor_lib.Predictor(profile, num_microbatches=8)
    wide = partition_lib.Partition((0, 2, 3))
    narrow = partition_lib.Partition((0, 3))
    counts = [5, 3]
    got = predictor.step_time([wide, narrow], counts)
    self.assertEqual(
        got.compute_ms, max(predictor.compute_ms(wide, 5), predictor.compute_ms(narrow, 3))
    )
    self.assertEqual(got.update_ms, 0.25 * 11)
    self.assertEqual(got.norm_ms, 0.125 * 11 + 0.25 - 0.25)


def _make_shapes(profile, predictor, *, num_failures, degrades=False, **options):
  templates = shapes_lib.make_templates(profile.layers, num_failures=num_failures, **options)
  return shapes_lib.Templates(
      tuple(template.partition for template in templates),
      predictor,
      config_lib.RecoverySection(num_failures=num_failures),
      mixes=True,
      degrades=degrades,
  )


class CoverTest(parameterized.TestCase):

  @hypothesis.settings(max_examples=12)
  @hypothesis.given(
      strategies.lists(
          strategies.tuples(strategies.sampled_from([0.5, 1.0, 2.0]), strategies.integers(1, 40)),
          min_size=5,
          max_size=6,
      ),
      strategies.integers(1, 2),
      strategies.integers(0, 2),
      strategies.integers(1, 6),
      strategies.integers(0, 7),
  )
  def test_is_the_best_of_all(self, layers, least, failures, shares, more):
    forwards, parameters = map(list, zip(*layers, strict=True))
    profile = _profile(forwards, parameters=parameters)
    predictor = predictor_lib.Predictor(profile, num_microbatches=7, num_shares=shares)
    shapes = _make_shapes(profile, predictor, num_failures=failures, min_nodes=least, max_nodes=5)
    num_nodes = (failures + 1) * least + more
    best = {}
    covers = (
        sizes
        for n in range(failures + 1, min(7, num_nodes // least) + 1)
        for sizes in itertools.combinations_with_replacement(range(least, 6), n)
        if sum(sizes) == num_nodes
    )
    for sizes in covers:
      partitions = [shapes.depths[n - least] for n in sizes]
      best[sizes] = min(
          predictor.step_time(partitions, counts).total_ms for counts in _splits(7, len(sizes))
      )
    least_ms = min(best.values())
    self.assertCountEqual(
        shapes.covers(num_nodes), [sizes for sizes, ms in best.items() if ms == least_ms]
    )

  @parameterized.product(min_nodes=[1, 2, 3], num_failures=[0, 1, 2])
  def test_fewer_pipelines_from_n0_on(self, min_nodes, num_failures):
    profile = _profile([1.0] * 6)
    most = 2 * min_nodes - 1
    shapes = _make_shapes(
        profile,
        predictor_lib.Predictor(profile, num_microbatches=8, group=2),
        num_failures=num_failures,
        min_nodes=min_nodes,
        max_nodes=most,
        degrades=True,
    )
    for num_nodes in range(min_nodes, 24):
      sizes = shapes.covers(num_nodes)[0]
      # There are four shares.
      self.assertEqual(sum(sizes), min(num_nodes, 4 * most))
      self.assertGreaterEqual(len(sizes), min(num_failures + 1, num_nodes // min_nodes))
    with self.assertRaisesRegex(base.InfeasibleError, "Too few nodes for a pipeline of .: 0"):
      shapes.covers(0)

  def test_few_microbatches(self):
    """More nodes than pipelines can use are spares."""
    profile = _profile([1.0] * 6)
    one, three, fewer = (
        _make_shapes(
            profile,
            predictor_lib.Predictor(profile, num_microbatches=count),
            **dict(num_failures=1, min_nodes=2),
            **more,
        )
        for count, more in ((1, {}), (3, {}), (1, {"degrades": True}))
    )
    self.assertEqual(three.covers(12), ((3, 3, 3),))
    with self.assertRaisesRegex(base.InfeasibleError, "2 pipelines are too many for 1 microb"):
      one.covers(12)
    self.assertEqual(fewer.covers(12), ((3,),))  # As in runs.
