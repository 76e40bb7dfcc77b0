import dataclasses
import itertools
import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import render as grid_lib
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule.ticks import check
from bamboo_jax.schedule.ticks import table as ticks_lib
from bamboo_jax.schedule.ticks import timeline as tick_timeline

Code = ticks_lib.Code
Op = instruction_lib.Op

# Backward passes so short that there is little room beside them.
TIGHT = costs_lib.StageCosts(
    forward_ms=(1.0, 1.5, 1.0, 2.0),
    backward_ms=(1.0, 1.5, 1.0, 2.0),
    transfer_ms=(0.0,) * 3,
)


def make_schedule(num_stages, num_microbatches, *, name="1f1b", costs=None):
  bounds = scheduler.one_f_one_b_bounds(num_stages)
  return scheduler.plan_rows(
      owners=range(num_stages),
      microbatches=range(num_microbatches),
      costs=costs or costs_lib.uniform_costs(num_stages),
      in_flight=bounds if name == "1f1b" else None,
  )


def make_table(num_stages, num_microbatches, *, budget=0.0, **kwargs):
  return ticks_lib.lower(
      make_schedule(num_stages, num_microbatches, **kwargs),
      owners=range(num_stages),
      costs=kwargs.get("costs") or costs_lib.uniform_costs(num_stages),
      budget=budget,
  )


def own_passes(row, stage):
  ops = {Op.FORWARD, Op.BACKWARD}
  return [i for i in row if i.op in ops and i.stage == stage]


def most_at_once(intervals):
  """Returns how many intervals (first, last) hold the same point at most."""
  return max(
      (
          sum(first <= point <= last for first, last in intervals)
          for point, _ in intervals
      ),
      default=0,
  )


def lifetimes(table, stage):
  """Returns when each microbatch needs its slots, by kind: (first, last).

  A tick t has three moments: 3t reads for the redundant forward pass, 3t + 1
  the pass of the stage, and 3t + 2 the arrivals.
  """
  at = {}
  for t, tick in enumerate(table.ticks):
    for s, own in enumerate(tick):
      if own.code is not Code.IDLE:
        at[own.code, s, own.microbatch] = 3 * t + 1
      if own.redundant >= 0:
        at["redundant", s, own.redundant] = 3 * t
  last = table.num_stages - 1
  spans = {"residual": [], "input": [], "grad": [], "output": []}
  for m in range(table.num_microbatches):
    forward = at[Code.FORWARD, stage, m]
    backward = at[Code.BACKWARD, stage, m]
    spans["residual"].append((forward, backward))
    if stage > 0:
      arrives = at[Code.FORWARD, stage - 1, m] + 1
      spans["input"].append((arrives, backward))
    if stage < last:
      arrives = at[Code.BACKWARD, stage + 1, m] + 1
      spans["grad"].append((arrives, backward))
      if ("redundant", stage, m) in at:
        spans["output"].append((forward, at["redundant", stage, m]))
  return spans


class LowerTest(parameterized.TestCase):

  @parameterized.parameters(
      *itertools.product(
          range(1, 6), range(1, 10), ("1f1b", "gpipe"), (None, 0.0, math.inf)
      )
  )
  def test_every_size(self, num_stages, num_microbatches, name, budget):
    schedule = make_schedule(num_stages, num_microbatches, name=name)
    table = make_table(num_stages, num_microbatches, name=name, budget=budget)

    # Nothing is lost, done twice, or read from a slot that holds another one.
    check.check(table)
    # The order of passes is that of the rows.
    rows = check.as_schedule(table).rows
    for s in range(num_stages):
      self.assertEqual(own_passes(rows[s], s), own_passes(schedule.rows[s], s))
    # Slots are as few as their lifetimes allow.
    for kind in ("residual", "input", "grad", "output"):
      needed = max(
          most_at_once(lifetimes(table, s)[kind]) for s in range(num_stages)
      )
      self.assertEqual(
          getattr(table, f"num_{kind}_slots"), max(1, needed), kind
      )
    # As many redundant forward passes as promised.
    statistics = tick_timeline.find_statistics(
        table, costs_lib.uniform_costs(num_stages)
    )
    if budget is None or num_stages == 1:
      self.assertEqual(statistics.num_redundant, 0)
    elif budget == 0.0:
      self.assertAlmostEqual(statistics.overhead, 0.0)
      self.assertEqual(statistics.elsewhere, 0)
    else:
      self.assertEqual(statistics.num_redundant, num_stages * num_microbatches)

  def test_redundant_forwards_add_no_tick(self):
    table = make_table(4, 8, budget=0.0)
    plain = make_table(4, 8, budget=None)
    costs = costs_lib.uniform_costs(4)
    self.assertEqual(
        tick_timeline.find_statistics(table, costs).num_redundant, 32
    )
    self.assertLen(table.ticks, len(plain.ticks))
    self.assertEqual(
        tick_timeline.lay_out(table, costs).span_ms,
        tick_timeline.lay_out(plain, costs).span_ms,
    )

  @parameterized.parameters(0.0, 0.05, 0.1, 0.3, math.inf)
  def test_keeps_to_the_budget(self, budget):
    table = make_table(4, 8, costs=TIGHT, budget=budget)
    plain = make_table(4, 8, costs=TIGHT, budget=None)
    check.check(table)
    span_ms = tick_timeline.lay_out(table, TIGHT).span_ms
    plain_ms = tick_timeline.lay_out(plain, TIGHT).span_ms
    self.assertLessEqual(span_ms, plain_ms * (1.0 + budget) + 1e-6)

  def test_a_larger_budget_places_more(self):
    placed = [
        tick_timeline.find_statistics(
            make_table(4, 8, costs=TIGHT, budget=budget), TIGHT
        ).num_redundant
        for budget in (0.0, 0.1, math.inf)
    ]
    self.assertEqual(placed, sorted(set(placed)))
    self.assertEqual(placed[-1], 32)

  def test_microbatches_and_nodes_are_counted_from_zero(self):
    # The second pipeline of two: nodes 2 and 3, microbatches 4 to 7.
    costs = costs_lib.uniform_costs(2)
    schedule = scheduler.plan_rows(
        owners=(2, 3),
        microbatches=range(4, 8),
        costs=costs,
        in_flight=(2, 1),
    )
    self.assertEqual(
        ticks_lib.lower(schedule, owners=(2, 3), costs=costs), make_table(2, 4)
    )

  def test_redundant_forwards_of_the_rows_are_placed_anew(self):
    costs = costs_lib.uniform_costs(3)
    schedule = scheduler.plan_rows(
        owners=range(3),
        microbatches=range(4),
        costs=costs,
        in_flight=(3, 2, 1),
        shadows={0: 2, 1: 0, 2: 1},
    )
    table = ticks_lib.lower(schedule, owners=range(3), costs=costs)
    check.check(table)
    self.assertEqual(
        tick_timeline.find_statistics(table, costs).num_redundant, 12
    )

  def test_refuses_a_node_with_two_stages(self):
    costs = costs_lib.uniform_costs(2)
    schedule = scheduler.plan_rows(
        owners=(0, 0), microbatches=(0,), costs=costs, in_flight=None
    )
    with self.assertRaisesRegex(ValueError, r"one stage.*\[0, 0\]"):
      ticks_lib.lower(schedule, owners=(0, 0), costs=costs)

  def test_refuses_rows_that_wait_for_each_other(self):
    forward = instruction_lib.Instruction(0, Op.FORWARD, 0)
    backward = instruction_lib.Instruction(0, Op.BACKWARD, 0)
    schedule = instruction_lib.Schedule(
        {
            0: (backward, forward),
            1: tuple(
                dataclasses.replace(i, stage=1) for i in (forward, backward)
            ),
        }
    )
    with self.assertRaisesRegex(ValueError, "wait for each other"):
      ticks_lib.lower(
          schedule, owners=range(2), costs=costs_lib.uniform_costs(2)
      )


class TickTableTest(absltest.TestCase):

  def test_one_microbatch_through_two_stages(self):
    self.assertEqual(
        make_table(2, 1).ticks,
        (
            (
                ticks_lib.Tick(Code.FORWARD, 0, residual=0, outputs=0),
                ticks_lib.Tick(redundant=0, arriving_inputs=0),
            ),
            (
                ticks_lib.Tick(redundant=0, redundant_inputs=0),
                ticks_lib.Tick(Code.FORWARD, 0, residual=0, inputs=0),
            ),
            (
                ticks_lib.Tick(arriving_grads=0),
                ticks_lib.Tick(Code.BACKWARD, 0, residual=0, inputs=0),
            ),
            (
                ticks_lib.Tick(Code.BACKWARD, 0, residual=0, grads=0),
                ticks_lib.Tick(),
            ),
        ),
    )

  def test_as_array(self):
    array = make_table(2, 1).as_array()
    self.assertEqual(array.dtype, np.int32)
    self.assertEqual(array.shape, (4, 2, 10))
    self.assertEqual(array[0, 0].tolist(), [1, 0, -1, 0, -1, -1, -1, -1, 0, -1])
    self.assertEqual(array[2, 1].tolist(), [2, 0, -1, 0, 0, -1, -1, -1, -1, -1])

  def test_fields_keep_their_order(self):
    names = [field.name for field in dataclasses.fields(ticks_lib.Tick)]
    self.assertEqual(
        names,
        [
            "code",
            "microbatch",
            "redundant",
            "residual",
            "inputs",
            "grads",
            "arriving_inputs",
            "arriving_grads",
            "outputs",
            "redundant_inputs",
        ],
    )


class CheckTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("pass_lost", 3, 0, dict(code=Code.IDLE), "cannot run|does not run"),
      ("input_lost", 0, 1, dict(arriving_inputs=-1), "Slot 0 of inputs"),
      ("grad_lost", 2, 0, dict(arriving_grads=-1), "not there"),
      ("other_input", 0, 1, dict(arriving_inputs=1), "Slot 0 of inputs"),
      ("other_residual", 3, 0, dict(residual=1), "Slot 1 of residual"),
      ("no_such_slot", 1, 1, dict(residual=7), "no slot 7 of residual"),
      ("not_kept", 0, 0, dict(outputs=-1), "Slot 0 of outputs"),
      ("redundant_twice", 3, 1, dict(redundant=0), "done twice"),
  )
  def test_refuses(self, t, s, change, message):
    table = make_table(2, 2)
    rows = [list(tick) for tick in table.ticks]
    rows[t][s] = dataclasses.replace(rows[t][s], **change)
    broken = dataclasses.replace(table, ticks=tuple(map(tuple, rows)))
    check.check(table)
    with self.assertRaisesRegex(check.ScheduleError, message):
      check.check(broken)

  def test_refuses_one_slot_too_few(self):
    table = dataclasses.replace(make_table(3, 4), num_residual_slots=2)
    with self.assertRaisesRegex(check.ScheduleError, "no slot 2 of residual"):
      check.check(table)


class TimelineTest(absltest.TestCase):

  def test_a_tick_lasts_as_long_as_its_longest_stage(self):
    table = make_table(2, 2, budget=0.0)
    self.assertEqual(
        grid_lib.render_grid(
            tick_timeline.lay_out(table, costs_lib.uniform_costs(2))
        ).splitlines(),
        [
            "node 0 F0  F1  RF0 ....B0      RF1 ....B1      ",
            "node 1 RF0 F0  B0      RF1 F1  B1      ........",
            "       40 columns are 10 ms, bubble 20.0 %",
        ],
    )

  def test_statistics(self):
    statistics = tick_timeline.find_statistics(
        make_table(4, 8), costs_lib.uniform_costs(4)
    )
    self.assertEqual(
        dataclasses.replace(
            statistics,
            bubble=round(statistics.bubble, 9),
            plain_bubble=round(statistics.plain_bubble, 9),
        ),
        tick_timeline.Statistics(
            num_ticks=22,
            idle_slots=24,
            in_idle_slots=12,
            beside_backwards=20,
            elsewhere=0,
            span_ms=40.0,
            plain_span_ms=40.0,
            bubble=0.2,
            plain_bubble=0.4,
        ),
    )

  def test_a_tick_ends_with_the_exchange(self):
    costs = costs_lib.uniform_costs(2, transfer_ms=0.5)
    table = make_table(2, 1, costs=costs)
    # F0, F0, B0, B0, each with a transfer in both directions.
    self.assertEqual(tick_timeline.lay_out(table, costs).span_ms, 6.0 + 4 * 1.0)

  def test_redundant_forwards_may_cost_less(self):
    costs = dataclasses.replace(
        costs_lib.uniform_costs(2, backward_ms=1.0), redundant_ms=(0.25, 0.5)
    )
    slots = tick_timeline.lay_out(make_table(2, 1, costs=costs), costs).slots
    self.assertEqual(
        {
            str(slot.instruction): slot.end_ms - slot.start_ms
            for slot in slots
            if slot.instruction.op is Op.REDUNDANT_FORWARD
        },
        {"0RF0": 0.25, "1RF0": 0.5},
    )

  def test_memory_is_that_of_the_greatest_stage(self):
    costs = dataclasses.replace(
        costs_lib.uniform_costs(2),
        activation_bytes=(1, 2),
        residual_bytes=(10, 30),
        resident_bytes=(500, 100),
    )
    table = make_table(2, 4)
    self.assertEqual(
        dict(tick_timeline.lay_out(table, costs).peak_bytes),
        dict.fromkeys(
            range(2),
            500
            + 30 * table.num_residual_slots
            + 2
            * (
                table.num_input_slots
                + table.num_grad_slots
                + table.num_output_slots
            ),
        ),
    )
