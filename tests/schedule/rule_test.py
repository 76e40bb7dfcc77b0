"""Which redundant forward pass runs in which wait, what that costs and protects."""

import random
import statistics

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax import config as config_lib
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.schedule import (
    checker,
    costs as costs_lib,
    failover,
    instruction as instruction_lib,
    lines as lines_lib,
    redundancy,
    rule as rule_lib,
)
from tests import schedules

Op = instruction_lib.Op
Instruction = instruction_lib.Instruction
_MEANS = ("overhead", "coverage")


def redundant(stage, microbatch):
  return Instruction(stage, Op.REDUNDANT_FORWARD, microbatch)


def plan_step(mode, owners, num_microbatches, costs=None, **options):
  """Returns the rows of a step; by default with passes of 20 and 40 ms, links of 0.5 ms."""
  costs = costs or schedules.uniform_costs(
      len(owners), forward_ms=20.0, backward_ms=40.0, transfer_ms=0.5
  )
  limits = lines_lib.in_flight_limits(len(owners))
  line = lines_lib.Line(owners, range(num_microbatches), limits)
  shadows = failover.Roles.initial(owners).shadows
  section = config_lib.RedundancySection(mode, **options)
  plan = rows_lib.plan_rows(section, line, shadows, costs=costs)
  checker.check(plan.timeline.instructions, [line])
  return plan


def find_effect(plan):
  return redundancy.StepFilling([plan]).predicted


class RuleTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._receive = Instruction(0, Op.RECV_GRAD, 0, peer=1)

  def _make(self, **limits):
    passes = [redundant(1, m) for m in range(3)]
    return rule_lib.WaitRule(
        passes=passes,
        pass_ms=lambda i: 10.0,
        latest_ms={self._receive: 50.0},
        span_ms=80.0,
        **limits,
    )

  @parameterized.parameters(
      # Limits, then when a pass of 10 ms may begin at the latest: in a wait that may
      # last until 50 ms, and at the end of a step of 80 ms, which it may not lengthen.
      (dict(), 40.0, 70.0),
      (dict(late=-0.5), 35.0, 65.0),
      (dict(late=1.5), 55.0, 70.0),
      (dict(late=-0.5, late_ms=4.0), 39.0, 65.0),
      (dict(late=1.5, late_ms=9.0), 64.0, 70.0),
  )
  def test_fits(self, limits, *latest_ms):
    rule, i = self._make(**limits), redundant(1, 0)
    for receive, now_ms in zip((self._receive, None), latest_ms, strict=True):
      self.assertTrue(rule.fits(i, receive, now_ms=now_ms))
      self.assertFalse(rule.fits(i, receive, now_ms=now_ms + 0.1))

  @parameterized.parameters(
      ((), (), None),
      ((), ((0, 2), (0, 1)), 1),
      ((1,), ((0, 2), (0, 1)), 2),
      ((1, 2), ((0, 2), (0, 1), (1, 0)), None),
  )
  def test_the_next_pass_has_its_input(self, done, activations, want):
    got = self._make().find_next({redundant(1, m) for m in done}, activations)
    self.assertEqual(got, None if want is None else redundant(1, want))

  def test_latest_times(self):
    plan = plan_step("bubble", range(2), 2)
    self.assertEqual(plan.rules[1].find_next((), ()), redundant(0, 0))  # Needs no input.
    latest_ms = rule_lib.find_latest_ms(plan.bare, plan.costs)
    show = lambda i, *ms: f"{i} {ms[0]:g}/{ms[1]:g}"
    got = {
        node: ", ".join(show(s.instruction, s.end_ms, latest_ms[node][s.instruction]) for s in row)
        for node, row in plan.bare.rows.items()
    }
    want = {
        0: (
            "0F0 20/20, 0SA0>1 20/20, 0F1 40/80, 0SA1>1 40/80, 0RG0<1 81/101, 0B0 121/141,"
            " 0RG1<1 141/141, 0B1 181/181"
        ),
        1: (
            "0RA0<0 20.5/20.5, 1F0 40.5/40.5, 1B0 80.5/80.5, 0SG0>0 80.5/80.5, 0RA1<0 80.5/80.5,"
            " 1F1 100.5/100.5, 1B1 140.5/140.5, 0SG1>0 140.5/140.5"
        ),
    }
    self.assertEqual(got, want)


class PlayedAheadTest(parameterized.TestCase):

  @parameterized.parameters(
      # Overhead and coverage in percent, the means of drawn pipelines.
      ("lazy", 0.0, 0.0),
      ("bubble", 0.0, 51.9),
      ("budget", 2.5, 75.2),
      ("eager", 5.8, 83.6),
  )
  def test_drawn_pipelines(self, mode, *want):
    rng, effects = random.Random(11), []
    for _ in range(24):
      num_stages = rng.choice([2, 4, 6])
      num_microbatches = rng.choice([1, 2, 3]) * num_stages
      times = tuple(rng.uniform(1, 1.6) for _ in range(num_stages))
      costs = costs_lib.StageCosts(times, tuple(2 * t for t in times), (0.1,) * (num_stages - 1))
      effects.append(find_effect(plan_step(mode, range(num_stages), num_microbatches, costs)))
    means = (statistics.fmean(getattr(e, name) for e in effects) for name in _MEANS)
    self.assertEqual(tuple(round(100 * mean, 1) for mean in means), want)

  def test_coverage(self):
    # The forward pass of stage 0 is done at 1 of 6 ms, that of stage 1 at 2 ms.
    # Their redundant ones are done at 5 and 2 ms. So the work of 5 + 4 ms can
    # be lost, and that of 1 + 4 ms is covered.
    rows = {0: "0F0 0SA0>1 1RF0 0RG0<1 0B0", 1: "0RA0<0 1F0 1B0 0SG0>0 0RF0"}
    timeline = rule_lib.replay(
        {n: [*map(schedules.parse, r.split())] for n, r in rows.items()},
        schedules.uniform_costs(2).time_ms,
    )
    self.assertEqual(timeline.span_ms, 6.0)
    self.assertAlmostEqual(redundancy.find_coverage(timeline), 5.0 / 9.0)

  @hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
  @hypothesis.given(st.data())
  def test_any_pipeline(self, data):
    num_stages = data.draw(st.integers(2, 6), "num_stages")
    num_microbatches = data.draw(st.integers(1, 12), "num_microbatches")
    costs = schedules.draw_costs(data, num_stages, least_ms=0.1)
    budget = data.draw(st.floats(0.0, 0.5), "budget")
    # Nodes that own several stages, across the end of the pipeline too.
    owners = data.draw(
        st.lists(st.integers(0, 2), min_size=num_stages, max_size=num_stages)
        .map(sorted)
        .map(lambda x: x[-2:] + x[:-2]),
        "owners",
    )
    plans = {
        mode: plan_step(mode, owners, num_microbatches, costs, budget=budget)
        for mode in schedules.MODES
    }
    for mode, plan in plans.items():
      self.assertEqual(plan.bare, plans["none"].bare)
      effect = find_effect(plan)
      self.assertBetween(effect.coverage, 0.0, 1.0)
      for node, row in plan.timeline.instructions.items():
        own = tuple(i for i in row if i.op is not Op.REDUNDANT_FORWARD)
        self.assertEqual(own, plan.bare.instructions[node])
      if mode == "bubble":
        self.assertAlmostEqual(effect.overhead, 0.0)
      elif mode == "budget":
        self.assertLessEqual(effect.overhead, budget + 1e-6)


class EffectTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._plan = plan_step("bubble", range(2), 2)
    self._filling = redundancy.StepFilling([self._plan])

  def test_of_a_step(self):
    ran = {
        node: redundancy.Ran.of(
            (
                (s.instruction, s.start_ms / 1e3, s.end_ms / 1e3)
                for s in row
                if not s.instruction.is_transfer
            ),
            since_secs=0.0,
        )
        for node, row in self._plan.timeline.rows.items()
    }
    filled = tuple(redundancy.Filled(2, 1, m, 20000) for m in range(2))
    self.assertEqual(ran[0], redundancy.Ran((20000, 20000, 40000, 40000), filled, 181_000))
    got = self._filling.find_effect(ran)
    self.assertEqual((got.passes, got.overhead, got.stretch), (3, 0.0, 1.0))
    self.assertEqual(got, self._filling.predicted)

  def test_a_longer_pass_costs(self):
    ran = {
        0: redundancy.Ran(
            (20000, 20000, 40000, 40000),
            (redundancy.Filled(2, 1, 0, 98150), redundancy.Filled(3, 1, 1, 10000)),
            2 * 228_150,  # Twice as long as its passes tell.
        ),
        1: redundancy.Ran((20000, 50000, 20000, 40000), (), 300_000),
    }
    # The gradient, which comes at 91 ms, waits until 138.15 ms; the last one comes at 151 ms.
    got = self._filling.find_effect(ran)
    self.assertEqual(got.passes, 2)
    self.assertAlmostEqual(got.overhead, 37.15 / 191.0)
    # Done at 138.15 and 188.15 ms; the forward passes at 20, 40, 40.5 and 110.5 ms.
    self.assertAlmostEqual(got.coverage, (90.0 + 40.0) / (4 * 228.15 - 211.0))
    self.assertAlmostEqual(got.stretch, 2.0 * 191.0 / 181.0)

  def test_none_if_something_else_has_run(self):
    four, three = redundancy.Ran((1, 2, 3, 4)), redundancy.Ran((1, 2, 3))
    for ran in ({}, {0: four}, {0: four, 1: three}):
      with self.subTest(ran=ran):
        self.assertIsNone(self._filling.find_effect(ran))
