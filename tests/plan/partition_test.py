"""Partitions are compared with the best of all partitions."""

import itertools

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies

from bamboo_jax import base
from bamboo_jax.plan import memory as memory_lib, partition as partition_lib
from tests import profiles

_MIB = 2**20


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


def _best_by_force(layers, *, num_stages, limit, num_gradients, cuts):
  """Returns the best bounds, or None if nothing fits; from the docstring."""
  in_flight, upkeep = range(num_stages, 0, -1), memory_lib.Upkeep(num_gradients)
  model = memory_lib.MemoryModel(layers, in_flight=in_flight, upkeep=upkeep)
  candidates = []
  for inner in itertools.combinations(cuts, num_stages - 1):
    bounds = (0, *inner, len(layers))
    if limit is not None and max(n.total_bytes for _, n in model.find_needs(bounds)) > limit:
      continue
    stage_ns = [
        sum(round((c.forward_ms + c.backward_ms) * 1e6) for c in layers[first:last])
        for first, last in itertools.pairwise(bounds)
    ]
    sent = sum(layers[b - 1].activation_bytes for b in bounds[1:-1])
    key = max(stage_ns), sent, sum(ns * ns for ns in stage_ns), bounds
    candidates.append(key)
  return min(candidates)[-1] if candidates else None


class PartitionTest(parameterized.TestCase):

  def test_layers_and_stages(self):
    partition = partition_lib.Partition((0, 2, 3, 6))
    self.assertEqual(partition.num_stages, 3)
    self.assertEqual(partition.num_layers, 6)
    self.assertEqual([list(partition.layers(s)) for s in range(3)], [[0, 1], [2], [3, 4, 5]])
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
      limit=strategies.none() | strategies.integers(0, 80),
      num_gradients=strategies.integers(1, 3),
  )
  def test_is_the_best_of_all(self, numbers, data, limit, num_gradients):
    layers = _layers(*numbers)
    cuts = data.draw(strategies.sets(strategies.sampled_from(range(1, 9))))
    cuts = sorted(c for c in cuts if c < len(layers))
    num_stages = data.draw(strategies.integers(1, len(cuts) + 1))
    best = _best_by_force(
        layers, num_stages=num_stages, limit=limit, num_gradients=num_gradients, cuts=cuts
    )
    try:
      got = partition_lib.split_layers(
          layers,
          num_stages,
          limit,
          upkeep=memory_lib.Upkeep(num_gradients),
          cuts=None if len(cuts) == len(layers) - 1 else cuts,
      ).bounds
    except base.InfeasibleError:
      got = None
    self.assertEqual(got, best)

  def test_floats_that_tie_on_paper_tie(self):
    layers = _layers(*((ms, 0, 0, 0) for ms in (0.1, 0.2, 0.3, 0.3, 0.2, 0.1)))
    got = partition_lib.split_layers(layers, 2)
    self.assertEqual(got.bounds, (0, 3, 6))
