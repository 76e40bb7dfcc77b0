"""Where redundant forward passes stand, what they cost and protect."""

import math

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.schedule import (
    costs as costs_lib,
    failover,
    instruction as instruction_lib,
    lines as lines_lib,
    redundancy,
    scheduler,
    timeline as timeline_lib,
    waits,
)
from tests import schedules

Op = instruction_lib.Op


def plan(mode, owners, num_microbatches, *, costs=None, **options):
  return redundancy.plan_redundancy(
      mode,
      roles=failover.Roles.initial(owners),
      microbatches=range(num_microbatches),
      costs=costs or schedules.uniform_costs(len(owners)),
      in_flight=scheduler.one_f_one_b_bounds(len(owners)),
      **options,
  )


def without_redundant(schedule):
  return [[i for i in row if i.op is not Op.REDUNDANT_FORWARD] for row in schedule.rows.values()]


class RowsTest(parameterized.TestCase):

  def test_bubble(self):
    got = plan("bubble", range(3), 4)
    self.assertEqual(
        str(got.schedule).splitlines(),
        [
            "0: 0F0 0SA0>1 0F1 0SA1>1 0F2 1RF0 1RF1 1RF2 0RG0<1 0SA2>1 0B0 0F3"
            " 0RG1<1 0SA3>1 0B1 1RF3 0RG2<1 0B2 0RG3<1 0B3",
            "1: 0RA0<0 1F0 1SA0>2 0RA1<0 1F1 2RF0 2RF1 1RG0<2 1SA1>2 1B0 0SG0>0"
            " 0RA2<0 1F2 1RG1<2 1SA2>2 1B1 0SG1>0 0RA3<0 1F3 1RG2<2 1SA3>2 1B2"
            " 0SG2>0 2RF2 1RG3<2 1B3 0SG3>0",
            "2: 0RF0 0RF1 1RA0<1 2F0 2B0 1SG0>1 1RA1<1 2F1 2B1 1SG1>1 1RA2<1"
            " 2F2 2B2 1SG2>1 1RA3<1 2F3 2B3 1SG3>1",
        ],
    )
    self.assertEqual(got.overhead, 0.0)
    self.assertEqual(
        [
            (
                receive.node,
                str(receive.instruction),
                " ".join(str(slot.instruction) for slot in run),
                receive.start_ms - run[0].start_ms,
                receive.start_ms - run[-1].end_ms,
            )
            for run, receive in waits.find_filled_waits(got.timeline)
        ],
        [
            (0, "0RG0<1", "1RF0 1RF1 1RF2", 4.0, 1.0),
            (0, "0RG2<1", "1RF3", 1.0, 0.0),
            (1, "1RG0<2", "2RF0 2RF1", 2.0, 0.0),
            (1, "1RG3<2", "2RF2", 1.0, 0.0),
            (2, "1RA0<1", "0RF0 0RF1", 2.0, 0.0),
        ],
    )

  @parameterized.parameters(
      # Node 0 waits 4, 1 and 1 ms, the others 2 and 1, and 2 ms. How many
      # passes of 1 ms each of them puts there.
      (0.0, "432"),
      (0.3, "311"),
      (0.4, "211"),
      (1.0, "211"),
      (1.5, "100"),
      (3.1, "000"),
  )
  def test_margin(self, margin, want):
    got = plan("bubble", range(3), 4, margin=margin)
    counts = [row.count("RF") for row in schedules.passes(got.schedule)]
    self.assertEqual("".join(map(str, counts)), want)

  @parameterized.parameters(
      ({"mode": "eagr"}, "Unknown mode of redundancy 'eagr'; did you mean"),
      ({"margin": -0.1}, "margin must be finite and at least 0, got -0.1"),
      ({"budget": math.nan}, "budget must be finite and at least 0, got nan"),
      ({"budget": math.inf}, "got inf"),
  )
  def test_refuses(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      plan(**({"mode": "budget", "owners": (0, 1)} | options), num_microbatches=1)


class PriceTest(parameterized.TestCase):

  @parameterized.parameters(
      # Mode, microbatches; passes, overhead and coverage in percent. The bare
      # minimum of 4 x 16 is 12.3 %: every node has to run 64 ms of passes.
      ("lazy", {}, 8, 0, 0.0, 0.0),
      ("bubble", {"margin": 0.2}, 8, 10, 0.0, 41.4),
      ("bubble", {}, 8, 18, 0.0, 54.7),
      ("budget", {"budget": 0.0}, 8, 29, 0.0, 58.0),
      ("budget", {"budget": 0.05}, 8, 32, 3.0, 71.0),
      ("budget", {"budget": 0.1}, 8, 32, 9.1, 88.6),
      ("eager", {}, 8, 32, 3.0, 71.0),
      ("bubble", {}, 16, 18, 0.0, 31.4),
      ("budget", {"budget": 0.1}, 16, 50, 8.8, 65.0),
      ("eager", {}, 16, 64, 17.5, 93.2),
  )
  def test_four_equal_stages(self, mode, options, num_microbatches, count, overhead, coverage):
    got = plan(mode, range(4), num_microbatches, **options)
    self.assertEqual(got.timeline.num_redundant, count)
    self.assertAlmostEqual(100 * got.overhead, overhead, places=1)
    self.assertAlmostEqual(100 * got.coverage, coverage, places=1)

  def test_kept_bytes(self):
    costs = costs_lib.StageCosts(
        forward_ms=(1.0, 1.0, 1.0),
        backward_ms=(2.0, 2.0, 2.0),
        transfer_ms=(0.0, 0.0),
        activation_bytes=(1, 10, 100),
        residual_bytes=(1000, 2000, 5000),
    )
    got = plan("eager", range(3), 2, costs=costs)
    self.assertEqual(
        redundancy.kept_bytes(got.schedule, costs),
        {
            # Two outputs of stage 0, those of stage 1, residuals.
            0: 2 * (1 + 10 + 2000),
            # Outputs of stages 1 and 2, gradients of that of stage 0.
            1: 2 * (10 + 1 + 100 + 5000),
            2: 2 * (10 + 1 + 1000),
        },
    )

  def test_coverage(self):
    # The forward pass of stage 0 is done at 1 of 6 ms, that of stage 1 at 2 ms.
    # Their redundant ones are done at 5 and 2 ms. So the work of 5 + 4 ms can
    # be lost, and that of 1 + 4 ms is covered.
    roles = failover.Roles.initial(range(2))
    rows = {0: "0F0 0SA0>1 1RF0 0RG0<1 0B0", 1: "0RA0<0 1F0 1B0 0SG0>0 0RF0"}
    timeline = timeline_lib.play(
        instruction_lib.Schedule(
            {n: tuple(map(schedules.parse, r.split())) for n, r in rows.items()}
        ),
        [lines_lib.Line(roles.owners, [0])],
        costs=schedules.uniform_costs(2),
    )
    self.assertEqual(timeline.span_ms, 6.0)
    self.assertAlmostEqual(redundancy.find_coverage(timeline), 5.0 / 9.0)

  def test_redundant_passes_that_make_the_step_shorter(self):
    # Another order of passes is lucky: such anomalies are known.
    costs = costs_lib.StageCosts(
        forward_ms=(1.0, 5.0, 5.0, 1.0, 5.0),
        backward_ms=(2.0, 2.0, 1.0, 2.0, 9.0),
        transfer_ms=(2.0, 1.0, 9.0, 0.0),
    )
    got = redundancy.plan_redundancy(
        "eager",
        roles=failover.Roles.initial(range(5)),
        microbatches=range(5),
        costs=costs,
        in_flight=[3, 3, 2, 3, 3],
    )
    self.assertEqual(got.timeline.num_redundant, 5 * 5)
    self.assertLess(got.overhead, -0.1)

  @hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
  @hypothesis.given(st.data())
  def test_any_pipeline(self, data):
    num_stages = data.draw(st.integers(2, 6), "num_stages")
    num_microbatches = data.draw(st.integers(1, 12), "num_microbatches")
    times = st.floats(0.1, 9.0) | st.just(1.0)
    costs = costs_lib.StageCosts(
        *(
            tuple(data.draw(st.lists(times, min_size=n, max_size=n)))
            for n in (num_stages, num_stages, num_stages - 1)
        )
    )
    budget = data.draw(st.floats(0.0, 0.5), "budget")
    # Nodes that own several stages, across the end of the pipeline too.
    owners = data.draw(
        st.lists(st.integers(0, 2), min_size=num_stages, max_size=num_stages)
        .map(sorted)
        .map(lambda x: x[-2:] + x[:-2]),
        "owners",
    )
    by_mode = {
        mode: plan(mode, owners, num_microbatches, costs=costs, budget=budget)
        for mode in redundancy.MODES
    }
    lazy, bubble = by_mode["lazy"], by_mode["bubble"]
    in_budget, eager = by_mode["budget"], by_mode["eager"]
    self.assertEqual(by_mode["none"].schedule, lazy.schedule)
    # Waits are filled, and nothing else changes.
    self.assertAlmostEqual(bubble.overhead, 0.0)
    self.assertEqual(without_redundant(bubble.schedule), without_redundant(lazy.schedule))
    self.assertLessEqual(in_budget.overhead, budget + 1e-6)
    self.assertGreaterEqual(in_budget.coverage, bubble.coverage)
    if len(set(owners)) > 1:
      self.assertEqual(eager.timeline.num_redundant, num_stages * num_microbatches)
    for got in by_mode.values():
      self.assertBetween(got.coverage, 0.0, 1.0)
      for run, receive in waits.find_filled_waits(got.timeline):
        self.assertGreaterEqual(receive.start_ms, run[-1].end_ms - 1e-6)
