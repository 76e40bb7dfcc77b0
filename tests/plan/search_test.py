"""The best split under conditions, against all splits."""

import itertools

from absl.testing import absltest
import hypothesis
from hypothesis import strategies

from bamboo_jax.plan import search as search_lib


def _condition(stage, sizes, most):
  """Two neighbours together are not larger than `most`."""
  return search_lib.Condition(
      frozenset((stage, stage + 1)),
      lambda bounds: sum(sizes[bounds[stage] : bounds[stage + 2]]) <= most,
  )


class SearchTest(absltest.TestCase):

  @hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
  @hypothesis.example([(0, 3), (1, 0), (4, 0), (1, 2), (1, 4), (1, 3), (4, 0)], 5, 8)
  @hypothesis.given(
      layers=strategies.lists(
          strategies.tuples(*[strategies.integers(0, 5)] * 2), min_size=2, max_size=8
      ),
      num_stages=strategies.integers(2, 5),
      most=strategies.integers(3, 15),
  )
  def test_is_the_best_of_all(self, layers, num_stages, most):
    num_layers, num_stages = len(layers), min(num_stages, len(layers))
    times, sizes = zip(*layers, strict=True)
    search = search_lib.Search(num_layers, num_stages, frozenset(range(1, num_layers + 1)))
    conditions = [_condition(stage, sizes, most) for stage in range(num_stages - 1)]
    charge = lambda stage, first, last: sum(times[first:last])
    best = None
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
      bounds = (0, *inner, num_layers)
      if all(condition.holds(bounds) for condition in conditions):
        slowest = max(charge(0, a, b) for a, b in itertools.pairwise(bounds))
        best = slowest if best is None else min(best, slowest)
    got = search.best_that_holds(charge, max, conditions)
    self.assertEqual(got and got[0], best)
