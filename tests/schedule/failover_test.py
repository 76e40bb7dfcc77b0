"""The rest of a step after a failure, for every way in which one can happen."""

import math
import statistics

from absl.testing import absltest, parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.plan import predictor as predictor_lib
from bamboo_jax.schedule import holdings as holdings_lib, rule as rule_lib
from tests import layouts, samples, schedules
from tests.schedule import deaths


class RestOfStepTest(parameterized.TestCase):

  @parameterized.parameters(
      # The gradients that node 2 has sent to the victim go to its shadow, which
      # has done the forward passes. The victim's last send is lost with it.
      (
          1,
          {0: "0RG0<1", 1: "0SG0>0", 2: "1SG1>1"},
          [
              "0: 1SA2>2 1RG0<2 1B0 0B0 1RG1<2 1B1 0B1 1RG2<2 1B2 0B2",
              "2: 1SG0>0 1SG1>0 1RA2<0 2F2 2B2 1SG2>0",
          ],
      ),
      # Redundant forward passes were not done yet. The shadow does them now.
      (
          1,
          {0: "0SA0>1", 1: "0RA0<0", 2: "0RF0"},
          [
              "0: 1F0 1SA0>2 0F1 1F1 1SA1>2 0F2 1RG0<2 1B0 1F2 1SA2>2 0B0"
              " 1RG1<2 1B1 0B1 1RG2<2 1B2 0B2",
              "2: 1RA0<0 2F0 2B0 1SG0>0 1RA1<0 2F1 2B1 1SG1>0 1RA2<0 2F2 2B2 1SG2>0",
          ],
      ),
  )
  def test_rows(self, victim, last_done, want):
    step = deaths.Step(range(3), 3)
    held = {}
    for node, row in step.plan().timeline.instructions.items():
      names = [str(i) for i in row]
      held[node] = holdings_lib.after(row[: names.index(last_done[node]) + 1])
    *_, rest = step.fail_over(step.roles, held, {victim})
    self.assertEqual([f"{n}: {' '.join(map(str, row))}" for n, row in rest.items()], want)

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
    tally = deaths.verify(step, num_victims=num_victims)
    num_choices = math.comb(len({*owners}), num_victims)
    self.assertGreater(tally["cuts"], len(owners) * num_microbatches)
    self.assertEqual(tally["deaths"], tally["cuts"] * num_survived)
    self.assertEqual(tally["lost"], tally["cuts"] * (num_choices - num_survived))


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
