"""The rest of a step after a failure, for every way in which one can happen."""

import itertools
import statistics

from absl.testing import absltest, parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.plan import predictor as predictor_lib
from bamboo_jax.schedule import rule as rule_lib
from tests import layouts, samples, schedules
from tests.schedule import deaths


class RestOfStepTest(parameterized.TestCase):

  @parameterized.parameters(
      # Mean over nodes and times; a backward pass takes 2 ms.
      ("lazy", 21.8),
      ("bubble", 18.9),
      ("eager", 18.9),
  )
  def test_price_of_a_death(self, mode, want_ms):
    step = deaths.Step(range(4), 8, mode)
    prices = predictor_lib.predict_pauses(step.plan(), step.roles, num_times=33)
    self.assertLen(prices, 4 * 33)
    self.assertAlmostEqual(statistics.mean(prices), want_ms, places=1)


class VerifyTest(parameterized.TestCase):

  # All victims at all cuts.
  @parameterized.parameters(
      # Mode, owners, microbatches, deaths at once; how many choices of victims are survived.
      *samples.draw(
          [
              ("lazy", "01", 1, 1, 2),
              ("lazy", "0123", 4, 1, 4),
              ("bubble", "012", 4, 1, 3),
              ("eager", "01", 1, 1, 2),
              ("eager", "012", 4, 1, 3),
              ("eager", "0123", 4, 1, 4),
          ],
          3,
      ),
      # Pairs that are no neighbours.
      ("eager", "0123", 3, 2, 2),
      ("eager", "0123", 4, 2, 2),
      ("eager", "01234", 2, 2, 5),
      # Nodes with several stages, after replicas have been made again.
      ("eager", "00", 3, 1, 0),
      ("eager", "002", 3, 1, 2),
      ("eager", "0023", 3, 1, 3),
      ("eager", "3123", 3, 1, 3),
      ("eager", "3323", 3, 1, 2),
      ("eager", "0022", 3, 1, 2),
      ("eager", "8922", 3, 1, 3),
  )
  def test_every_death(self, mode, owners, num_microbatches, num_victims, num_survived):
    step = deaths.Step(layouts.nodes(owners), num_microbatches, mode)
    cuts = deaths.Cuts(step.plan().timeline.instructions)
    seen, found = {}, [*cuts]
    self.assertGreater(len(found), len(owners) * num_microbatches)
    for cut in found:
      survived = 0
      for victims in itertools.combinations(cuts.nodes, num_victims):
        # Deaths that leave the survivors with the same holdings are planned once.
        pairs = zip(cuts.nodes, cut, strict=True)
        left = (victims, *(count for node, count in pairs if node not in victims))
        if left not in seen:
          seen[left] = step.fail_over(step.roles, cuts.holdings(cut), victims) is not None
        survived += seen[left]
      self.assertEqual(survived, num_survived)


class AnyPipelineTest(absltest.TestCase):

  @hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
  @hypothesis.given(st.data())
  def test_any_deaths(self, data):
    num_stages = data.draw(st.integers(1, 6), "num_stages")
    first = data.draw(st.integers(0, 9), "first microbatch")
    count = data.draw(st.integers(1, 8), "num_microbatches")
    costs, real = (schedules.draw_costs(data, num_stages, least_ms=0.0) for _ in range(2))
    bounds = st.lists(st.integers(1, 8), min_size=num_stages, max_size=num_stages)
    step = deaths.Step(
        range(num_stages),
        count,
        mode=data.draw(st.sampled_from(schedules.MODES), "mode"),
        costs=costs,
        in_flight=data.draw(st.none() | bounds, "in_flight"),
        first=first,
    )
    rows, roles, held = step.plan().timeline.instructions, step.roles, None
    # Rows run to their end too if the durations are not those they were made for.
    rule_lib.replay(rows, real.time_ms)
    # Some nodes die, and some more in the rest of the step, as long as all
    # stages have a copy.
    rng = data.draw(st.randoms(use_true_random=False))
    while True:
      cuts = deaths.Cuts(rows, held)
      held = cuts.holdings(cuts.draw(rng))
      lost = data.draw(st.sets(st.sampled_from(roles.nodes)), "lost")
      rest = step.fail_over(roles, held, lost) if lost else None
      if rest is None:
        break
      roles, held, rows = rest
