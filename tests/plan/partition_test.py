"""Partitions are compared with the best of all partitions."""

import functools
import itertools

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import memory as memory_lib, partition as partition_lib
from tests import profiles

_MIB = 2**20
_BUBBLE = memory_lib.Upkeep(protection=config_lib.RedundancySection(mode="bubble"))


def _layers(*numbers):
  """Returns layers whose backward pass takes twice the forward pass."""
  return [
      profiles.make_layer(
          f"layer_{i}",
          forward_ms=forward,
          backward_ms=2 * forward,
          parameter_bytes=parameters,
          slot_bytes=2 * parameters,
          activation_bytes=activation,
          residual_bytes=residual,
      )
      for i, (forward, parameters, activation, residual) in enumerate(numbers)
  ]


def _find_by_force(layers, *, num_stages, upkeep, cuts):
  """Returns all bounds and the memory that they need, the best first; from the docstring."""
  in_flight = range(num_stages, 0, -1)
  model = memory_lib.MemoryModel(layers, in_flight=in_flight, upkeep=upkeep)

  def key(bounds):
    stage_ns = [
        sum(round((c.forward_ms + c.backward_ms) * 1e6) for c in layers[first:last])
        for first, last in itertools.pairwise(bounds)
    ]
    sent = sum(layers[b - 1].activation_bytes for b in bounds[1:-1])
    return max(stage_ns), sent, sum(ns * ns for ns in stage_ns), bounds

  found = [(0, *inner, len(layers)) for inner in itertools.combinations(cuts, num_stages - 1)]
  most = lambda bounds: max(need.total_bytes for _, need in model.find_needs(bounds))
  return {bounds: most(bounds) for bounds in sorted(found, key=key)}


class PartitionTest(parameterized.TestCase):

  def test_stage_of_a_layer(self):
    partition = partition_lib.Partition((0, 2, 3, 6))
    self.assertEqual([partition.stage_of(layer) for layer in range(6)], [0, 0, 1, 2, 2, 2])

  @parameterized.named_parameters(
      ("empty", (), "Every stage needs a layer"),
      ("no_stage", (0,), "Every stage needs a layer"),
      ("empty_stage", (0, 2, 2), "Every stage needs a layer"),
      ("backwards", (0, 3, 2), "Every stage needs a layer"),
  )
  def test_refuses(self, bounds, message):
    with self.assertRaisesRegex(ValueError, message):
      partition_lib.Partition(bounds)


class SplitLayersTest(parameterized.TestCase):

  def test_infeasible_says_by_how_much(self):
    layers = _layers(*[(1, _MIB, 0, 0)] * 3, (1, 2 * _MIB, 0, 0))
    with self.assertRaisesWithLiteralMatch(
        base.InfeasibleError,
        "No split of 4 layers into 2 stages fits in 9.5 MiB per device: at best"
        " stage 1 (layers layer_2 to layer_3) needs 12.0 MiB in phase 'compute', which is 2.5 MiB"
        " too much. Use more stages, smaller microbatches or fewer of them in"
        " flight.",
    ):
      partition_lib.split_layers(layers, 2, 19 * _MIB // 2)

  def test_infeasible_with_replicas(self):
    with self.assertRaisesRegex(
        base.InfeasibleError,
        r"fits in 8.0 MiB per device: at best node \d with stages \d, \d and "
        r"replicas of \d after the death of node \d \(layers layer_\d to "
        r"layer_\d\) needs 12.0 MiB in phase .*, which is 4.0 MiB too much. Use more stages, .*; "
        r'or of config.redundancy slots="host", mode="lazy", mode="none".',
    ):
      partition_lib.split_layers(_layers(*[(1, _MIB, 0, 0)] * 4), 4, 8 * _MIB, upkeep=_BUBBLE)

  @parameterized.named_parameters(
      ("more_stages_than_layers", dict(num_stages=3), "from 1 to 2"),
      ("no_stage", dict(num_stages=0), "from 1 to 2"),
      ("more_stages_than_cuts", dict(num_stages=2, cuts=[]), "from 1 to 1"),
  )
  def test_refuses(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      partition_lib.split_layers(_layers(*[(1, 0, 0, 0)] * 2), **options)

  # Small numbers, so that there are many ties.
  _LAYERS = strategies.lists(
      strategies.tuples(*[strategies.integers(0, 4)] * 4), min_size=1, max_size=8
  )

  @hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
  @hypothesis.given(
      numbers=_LAYERS,
      data=strategies.data(),
      limit=strategies.none() | strategies.integers(0, 90),
      upkeep=strategies.sampled_from([*map(memory_lib.Upkeep, (1, 2, 3)), *[_BUBBLE] * 3]),
  )
  def test_is_the_best_of_all(self, numbers, data, limit, upkeep):
    layers = _layers(*numbers)
    cuts = data.draw(strategies.sets(strategies.sampled_from(range(1, 9))))
    cuts = sorted(c for c in cuts if c < len(layers))
    num_stages = data.draw(strategies.integers(1, len(cuts) + 1))
    needs = _find_by_force(layers, num_stages=num_stages, upkeep=upkeep, cuts=cuts)
    given = None if len(cuts) == len(layers) - 1 else cuts
    split = functools.partial(
        partition_lib.split_layers, layers, num_stages, upkeep=upkeep, cuts=given
    )
    try:
      got = split(limit).bounds
    except base.InfeasibleError:
      got = None
    fitting = [bounds for bounds, need in needs.items() if limit is None or need <= limit]
    if limit is None or upkeep is not _BUBBLE:
      self.assertEqual(got, next(iter(fitting), None))
    elif got:
      self.assertIn(got, fitting)
    else:  # With replicas a split that barely fits may be missed.
      self.assertGreater(1.5 * min(needs.values()), limit)
    # With room it is the fastest.
    self.assertEqual(split(2 * max(needs.values())).bounds, next(iter(needs)))

  def test_floats_that_tie_on_paper_tie(self):
    layers = _layers(*((ms, 0, 0, 0) for ms in (0.1, 0.2, 0.3, 0.3, 0.2, 0.1)))
    got = partition_lib.split_layers(layers, 2)
    self.assertEqual(got.bounds, (0, 3, 6))
