"""Duties after deaths, and splits that survive them, by force."""

import itertools

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan.memory import deaths, upkeep as upkeep_lib
from tests import profiles
from tests.plan.memory import model_test


def _duties(num_stages, **protection):
  upkeep = upkeep_lib.Upkeep(protection=upkeep_lib.Protection(**protection))
  found = deaths.find_duties(num_stages, upkeep)
  return [(d.victim, d.node, d.owned, d.replicas) for d in found]


class DutiesTest(parameterized.TestCase):

  def test_two_stages(self):
    self.assertEqual(
        _duties(2),
        [
            (None, 0, (0,), (1,)),
            (None, 1, (1,), (0,)),
            (0, 1, (0, 1), ()),  # It has nobody to hold replicas.
            (1, 0, (0, 1), ()),
        ],
    )

  def test_a_shadow_gets_two_replicas(self):
    after = [d for d in _duties(4) if d[0] == 2]
    self.assertEqual(after, [(2, 0, (0,), (1, 2)), (2, 1, (1, 2), (3,))])

  def test_need(self):
    duty = deaths.Duty(0, (0, 1), (2,))
    model = model_test._model(protection=upkeep_lib.Protection())
    got = duty.need(model, (0, 1, 2, 4))
    self.assertEqual(got.parameter_bytes, 100 + 200)
    self.assertEqual(got.residual_bytes, 3 * 10 + 2 * 20)
    self.assertEqual(got.replica_bytes, 3 * 1200)
    self.assertEqual(got.working_bytes, 70)

  def test_an_owner_stands_in_for_one_of_another_pipeline(self):
    upkeep = dict(num_accumulators=2, num_rerouted=3)
    own, alone, *more = deaths.find_duties(2, upkeep_lib.Upkeep(**upkeep))
    self.assertEqual([d.stands_in for d in (own, alone, *more)], [0, 0, 1, 1])
    model = model_test._model(**upkeep)
    one, two = (d.need(model, (0, 2, 4)) for d in (own, more[0]))
    self.assertEqual(two.parameter_bytes, one.parameter_bytes)
    self.assertEqual(one.accumulator_bytes, 2 * one.parameter_bytes)
    self.assertEqual(two.accumulator_bytes, 5 * one.parameter_bytes)
    self.assertEqual(two.residual_bytes, 2 * one.residual_bytes)
    # With replicas a single death leaves the stage to its shadow.
    upkeep["protection"] = upkeep_lib.Protection()
    found = deaths.find_duties(2, upkeep_lib.Upkeep(**upkeep))
    self.assertFalse(any(d.stands_in for d in found))


def _layer(index, numbers):
  forward, parameters, residual = numbers
  return profiles.make_layer(
      f"layer_{index}",
      forward_ms=forward,
      backward_ms=0.0,
      parameter_bytes=parameters,
      slot_bytes=parameters,
      activation_bytes=(index * 7) % 3,
      residual_bytes=residual,
  )


def _need(layers, bounds, in_flight, protection):
  """Returns the largest need of a node, as the issue would have it."""
  num_stages = len(bounds) - 1
  parts = [layers[a:b] for a, b in itertools.pairwise(bounds)]
  size = lambda s, name: sum(getattr(c, name) for c in parts[s])
  edges = [0, *[layers[b - 1].activation_bytes for b in bounds[1:-1]], 0]

  def need(owned, replicas):
    p = sum(size(s, "parameter_bytes") for s in owned)
    q = sum(size(s, "parameter_bytes") for s in replicas)
    rows = sum(
        in_flight[s] * size(s, "residual_bytes") + 2 * (edges[s] + edges[s + 1]) for s in owned
    )
    return 3 * p + 2 * q + max(rows, q)

  worst = 0
  for s in range(num_stages):
    behind = [(s + i) % num_stages for i in range(3)]
    worst = max(worst, need(behind[:1], behind[1:2] if num_stages > 1 else []))
    if num_stages == 2:
      worst = max(worst, need(behind[:2], []))
    elif num_stages > 2:  # The next node dies, or the one after it.
      worst = max(worst, need(behind[:2], behind[2:]))
      worst = max(worst, need(behind[:1], behind[1:]))
  return worst


class SplitTest(parameterized.TestCase):

  @hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
  @hypothesis.given(
      numbers=strategies.lists(
          strategies.tuples(*[strategies.integers(0, 4)] * 3), min_size=2, max_size=8
      ),
      limit=strategies.integers(10, 90),
      data=strategies.data(),
  )
  def test_none_that_fits_is_missed(self, numbers, limit, data):
    layers = [_layer(i, n) for i, n in enumerate(numbers)]
    num_stages = data.draw(strategies.integers(1, min(5, len(layers))))
    in_flight = [num_stages - s for s in range(num_stages)]
    protection = upkeep_lib.Protection()
    best = None
    for inner in itertools.combinations(range(1, len(layers)), num_stages - 1):
      bounds = (0, *inner, len(layers))
      if _need(layers, bounds, in_flight, protection) > limit:
        continue
      stages = [layers[a:b] for a, b in itertools.pairwise(bounds)]
      ns = [sum(round(c.forward_ms * 1e6) for c in s) for s in stages]
      sent = sum(layers[b - 1].activation_bytes for b in inner)
      key = (max(ns), sent, sum(n * n for n in ns), bounds)
      best = key if best is None else min(best, key)
    try:
      got = partition_lib.split_layers(
          layers,
          num_stages=num_stages,
          memory_limit_bytes=limit,
          upkeep=upkeep_lib.Upkeep(protection=protection),
      ).bounds
    except base.InfeasibleError:
      got = None
    self.assertEqual(got, best and best[-1])

  def test_error_names_who_what_and_what_helps(self):
    layers = [_layer(i, (1, 2**20, 0)) for i in range(4)]
    with self.assertRaisesRegex(
        base.InfeasibleError,
        r"fits in 8.0 MiB per device: at best node \d with stages \d, \d and "
        r"replicas of \d after the death of node \d \(layers layer_\d to "
        r"layer_\d\) needs 9.0 MiB, .* 1.0 MiB too much. Use more stages, .*; "
        r'or of config.redundancy slots="host", mode="lazy", mode="none".',
    ):
      partition_lib.split_layers(
          layers,
          num_stages=4,
          memory_limit_bytes=8 * 2**20,
          upkeep=upkeep_lib.Upkeep(protection=upkeep_lib.Protection()),
      )
