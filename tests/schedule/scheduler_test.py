"""What the first schedule of a step looks like."""

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    lines as lines_lib,
    scheduler,
    timeline as timeline_lib,
)
from tests import schedules

_BOUNDS = scheduler.one_f_one_b_bounds
_LATE = costs_lib.StageCosts((9.0, 1.0), (1.0, 1.0), (0.0,))
_NEXT = {0: 2, 1: 0, 2: 1}  # Shadows of three stages.
_SLOW_LINKS = costs_lib.StageCosts((1.0,) * 3, (2.0,) * 3, (5.0,) * 2)


def plan(owners, microbatches, *, in_flight, costs=None, **options):
  line = lines_lib.Line(owners, microbatches, in_flight)
  costs = costs or schedules.uniform_costs(len(owners))
  return scheduler.plan_rows([line], costs=costs, **options)


def play(schedule, num_microbatches, *, costs=None, **options):
  num_stages = len(schedule.rows)
  line = lines_lib.Line(range(num_stages), range(num_microbatches))
  costs = costs or schedules.uniform_costs(num_stages)
  return timeline_lib.play(schedule, [line], costs=costs, **options)


class PlanRowsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (
          *("1f1b", 3, 4, dict(in_flight=_BOUNDS(3))),
          "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
          "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
          "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
      ),
      (
          *("gpipe", 3, 4, dict(in_flight=None)),
          "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3",
          "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3",
          "2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3",
      ),
      (
          *("gpipe_waits", 2, 3, dict(in_flight=None, costs=_LATE)),
          *("0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"),
      ),
      (
          *("slow_links", 3, 3, dict(in_flight=(2, 2, 2), costs=_SLOW_LINKS)),
          "0F0 0F1 0B0 0F2 0B1 0B2",
          "1F0 1F1 1B0 1B1 1F2 1B2",  # 1F2 comes after the gradient of 1B1.
          "2F0 2F1 2B0 2B1 2F2 2B2",
      ),
      (
          *("redundant", 3, 4, dict(in_flight=_BOUNDS(3), shadows=_NEXT)),
          "0F0 0F1 0F2 1RF0 1RF1 1RF2 0B0 0F3 1RF3 0B1 0B2 0B3",
          "1F0 1F1 2RF0 2RF1 1B0 1F2 2RF2 1B1 1F3 2RF3 1B2 1B3",
          # Those of the first stage also fill the wait at the start.
          "0RF0 0RF1 2F0 2B0 2F1 2B1 2F2 0RF2 2B2 2F3 0RF3 2B3",
      ),
      (
          *("redundant_for_some", 3, 4),
          dict(in_flight=_BOUNDS(3), shadows=_NEXT, redundant=range(1, 3)),
          "0F0 0F1 0F2 1RF1 1RF2 0B0 0F3 0B1 0B2 0B3",
          "1F0 1F1 2RF1 1B0 1F2 2RF2 1B1 1F3 1B2 1B3",
          "0RF1 0RF2 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
      ),
  )
  def test_passes(self, num_stages, num_microbatches, options, *want):
    schedule = plan(range(num_stages), range(num_microbatches), **options)
    self.assertEqual(schedules.passes(schedule), list(want))

  def test_transfers_of_1f1b(self):
    schedule = plan(range(3), range(3), in_flight=_BOUNDS(3))
    self.assertEqual(
        str(schedule).splitlines(),
        [
            "0: 0F0 0SA0>1 0F1 0SA1>1 0F2 0RG0<1 0SA2>1 0B0 0RG1<1 0B1 0RG2<1" " 0B2",
            "1: 0RA0<0 1F0 1SA0>2 0RA1<0 1F1 1RG0<2 1SA1>2 1B0 0SG0>0 0RA2<0"
            " 1F2 1RG1<2 1SA2>2 1B1 0SG1>0 1RG2<2 1B2 0SG2>0",
            "2: 1RA0<1 2F0 2B0 1SG0>1 1RA1<1 2F1 2B1 1SG1>1 1RA2<1 2F2 2B2" " 1SG2>1",
        ],
    )

  def test_a_shadow_of_two_stages_runs_one_after_the_other(self):
    schedule = plan([0, 1, 1], range(2), in_flight=_BOUNDS(3), shadows={0: 1, 1: 0, 2: 0})
    self.assertEqual(
        schedules.passes(schedule),
        ["0F0 0F1 1RF0 2RF0 1RF1 2RF1 0B0 0B1", "0RF0 1F0 2F0 1F1 2B0 2F1 0RF1 1B0 2B1 1B1"],
    )

  def test_what_is_held_is_not_run_again(self):
    # Microbatch 0 is finished on both nodes, its redundant forward pass too.
    held = {0: "0F0 0SA0>1 1RF0 0RG0<1 0B0", 1: "0RF0 0RA0<0 1F0 1B0 0SG0>0"}
    schedule = plan(
        *(range(2), range(2)),
        in_flight=_BOUNDS(2),
        shadows={0: 1, 1: 0},
        holdings={
            node: holdings_lib.after(map(schedules.parse, row.split()))
            for node, row in held.items()
        },
    )
    self.assertEqual(schedules.passes(schedule), ["0F1 1RF1 0B1", "0RF1 1F1 1B1"])

  @parameterized.parameters(
      # In comments the span if transfers blocked nobody.
      ((1, 1, 1, 2), (2, 2, 2, 4), 105.0),  # 105.0
      ((2, 1, 1, 1), (4, 2, 2, 2), 100.0),  # 99.0
      ((1, 3, 1, 1), (2, 6, 2, 2), 147.0),  # 147.0
      ((1, 1.3, 0.8, 1.2), (2.1, 2.4, 1.7, 2.2), 66.7),  # 66.7
      ((0.9, 0.5, 1.3, 0.7), (1.1, 1.9, 1.6, 2.9), 64.9),  # 64.9
      # Senders wait instead of starting a long pass.
      ((2, 1, 1), (8, 8, 2), 172.0),  # 171.0
  )
  def test_blocking_transfers_cost_little(self, forward, backward, want_ms):
    num_stages = len(forward)
    costs = costs_lib.StageCosts(forward, backward, (0.0,) * (num_stages - 1))
    schedule = plan(range(num_stages), range(16), in_flight=_BOUNDS(num_stages), costs=costs)
    self.assertAlmostEqual(play(schedule, 16, costs=costs).span_ms, want_ms)

  @parameterized.product(
      num_stages=[1, 2, 5], num_microbatches=[1, 3, 8], more=[0, 1, 8], forward_ms=[0.5, 1.0, 3.0]
  )
  def test_residuals_are_bounded(self, num_stages, num_microbatches, more, forward_ms):
    bounds = [bound + more for bound in _BOUNDS(num_stages)]
    schedule = plan(
        range(num_stages),
        range(num_microbatches),
        in_flight=bounds,
        costs=schedules.uniform_costs(num_stages, forward_ms=forward_ms),
    )
    for stage, text in enumerate(schedules.passes(schedule)):
      in_flight = peak = 0
      for word in text.split():
        in_flight += 1 if "F" in word else -1
        peak = max(peak, in_flight)
      self.assertEqual(in_flight, 0)
      self.assertLessEqual(peak, bounds[stage])

  def test_microbatches_are_numbered_in_the_global_batch(self):
    schedule = plan([2, 3], [4, 5], in_flight=_BOUNDS(2))
    self.assertEqual(
        str(schedule).splitlines(),
        [
            "2: 0F4 0SA4>3 0F5 0RG4<3 0SA5>3 0B4 0RG5<3 0B5",
            "3: 0RA4<2 1F4 1B4 0SG4>2 0RA5<2 1F5 1B5 0SG5>2",
        ],
    )

  def test_results_stay_on_a_node_that_owns_both_stages(self):
    schedule = plan([0, 0], range(2), in_flight=_BOUNDS(2))
    self.assertEqual(str(schedule), "0: 0F0 1F0 0F1 1B0 1F1 0B0 1B1 0B1")

  def test_the_next_backward_pass_may_exceed_the_bound(self):
    held = holdings_lib.Holdings(residuals=frozenset({(0, 1), (0, 2)}))
    schedule = plan([0], range(3), in_flight=[1], holdings={0: held})
    self.assertEqual(str(schedule), "0: 0F0 0B0 0B1 0B2")

  def test_a_lost_output_is_computed_again(self):
    held = holdings_lib.Holdings(
        residuals=frozenset({(0, 1), (0, 2)}), accumulated=frozenset({(0, 0)})
    )
    schedule = plan([0, 1], range(3), in_flight=[1, 1], holdings={0: held})
    self.assertEqual(schedules.passes(schedule), ["0F0 0F1 0B1 0F2 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"])
    play(schedule, 3, holdings={0: held})

  @parameterized.parameters(
      (dict(owners=[0], in_flight=[1]), "owners must name a node for each of the 2 stages"),
      ({"microbatches": []}, r"non-negative integers, got \[\]"),
      ({"microbatches": [1, 0]}, r"non-negative integers, got \[1, 0\]"),
      ({"in_flight": [1]}, "bound of at least 1 for each of the 2 stages"),
      ({"in_flight": [1, 0]}, r"got \[1, 0\]"),
      ({"shadows": {2: 0}}, "shadows names stage 2, there are 2"),
      ({"shadows": {1: 1}}, "shadow of stage 1 must be another node"),
      ({"shadows": {1: 7}}, "than its owner 1, got 7"),
      (
          dict(owners=[0, 1, 2], costs=None, in_flight=None, shadows={1: 2}),
          "must own or shadow the stage",
      ),
  )
  def test_refuses(self, wrong, message):
    right = {
        "owners": [0, 1],
        "microbatches": [0, 1],
        "costs": schedules.uniform_costs(2),
        "in_flight": [2, 1],
    }
    with self.assertRaisesRegex(ValueError, message):
      plan(**(right | wrong))

  def test_a_gradient_that_nobody_kept(self):
    used = holdings_lib.Holdings(accumulated=frozenset({(1, 0)}))
    with self.assertRaisesRegex(base.InfeasibleError, "Stage 0 needs the gradient of microbatch 0"):
      plan([0, 1], [0], in_flight=None, holdings={1: used})
