import dataclasses
import itertools
import math

from absl.testing import absltest, parameterized
import numpy as np

from bamboo_jax.runtime.spmd import plan as plan_lib
from bamboo_jax.runtime.spmd.ticks import check, lowering, tick_table as table_lib
from bamboo_jax.schedule import (
  costs as costs_lib,
  failover,
  instruction as instruction_lib,
  lines as lines_lib,
  render as grid_lib,
  simulate as simulate_lib,
)
from tests import redone as redone_lib, schedules

Op = instruction_lib.Op

# Backward passes so short that there is little room beside them.
TIGHT = costs_lib.StageCosts(
    forward_ms=(1.0, 1.5, 1.0, 2.0), backward_ms=(1.0, 1.5, 1.0, 2.0), transfer_ms=(0.0,) * 3
)


def make_rows(num_stages, num_microbatches):
  bounds = lines_lib.in_flight_limits(num_stages)
  line = lines_lib.Line(range(num_stages), range(num_microbatches), bounds)
  costs = schedules.uniform_costs(num_stages)
  return simulate_lib.simulate([line], costs=costs).instructions


def make_table(num_stages, num_microbatches, **options):
  options = {"costs": schedules.uniform_costs(num_stages)} | options
  return lowering.lower(
      make_rows(num_stages, num_microbatches),
      owners=range(num_stages),
      microbatches=range(num_microbatches),
      **options,
  )


def lay_out(table, **options):
  costs = schedules.uniform_costs(table.num_stages)
  return plan_lib.lay_out(table, costs, **options)


def find_overhead(table):
  plain = lay_out(table, without={Op.REDUNDANT_FORWARD})
  return lay_out(table).span_ms / plain.span_ms - 1.0


def place(table, op):
  """Returns the tick of each pass of an operation, by stage and microbatch."""
  return {
      (i.stage, i.microbatch): t
      for t, tick in enumerate(table.ticks)
      for own in tick
      for i in check.passes(own)
      if i.op is op
  }


class PairedTest(parameterized.TestCase):

  @parameterized.product(num_stages=[1, 2, 3, 5, 8], num_microbatches=[1, 2, 5, 9])
  def test_each_pass_has_its_tick(self, num_stages, num_microbatches):
    table = make_table(num_stages, num_microbatches)
    last = num_stages - 1
    everything = list(itertools.product(range(num_stages), range(num_microbatches)))
    self.assertEqual(place(table, Op.FORWARD), {(s, m): m + s for s, m in everything})
    self.assertEqual(place(table, Op.BACKWARD), {(s, m): m + 2 * last - s for s, m in everything})
    self.assertEqual(lay_out(table).span_ms, 3 * (num_microbatches + last))
    for s in range(num_stages):
      in_flight = min(2 * (num_stages - s) - 1, num_microbatches)
      own = [tick[s] for tick in table.ticks]
      slots = {p.residual for tick in own for p in tick.forwards}
      self.assertLen(slots, in_flight)

  # As `3 (M + P - 1)` units are all that ideal 1F1B takes.
  @parameterized.parameters((4, 8, 31), (8, 16, 127), (4, 16, 33))
  def test_redundant_forwards_that_are_free(self, num_stages, num_microbatches, count):
    size = (num_stages, num_microbatches)
    free = make_table(*size, budget=0.0)
    self.assertEqual(lay_out(free).num_redundant, count)
    self.assertEqual(find_overhead(free), 0.0)
    every = make_table(*size, budget=math.inf)
    num_passes = num_stages * num_microbatches
    self.assertEqual(lay_out(every).num_redundant, num_passes)
    if num_microbatches == 2 * num_stages:
      self.assertLessEqual(find_overhead(every), 0.05)

  def test_redundant_forwards_are_in_order(self):
    # Losses, statistics and gradients of the head are summed as they come.
    for budget in (0.0, 0.1, 0.3, math.inf):
      table = make_table(4, 9, costs=TIGHT, budget=budget)
      for n in range(4):
        ran = [
            i.microbatch
            for tick in table.ticks
            for i in check.passes(tick[n])
            if i.op is Op.REDUNDANT_FORWARD
        ]
        self.assertEqual(ran, list(range(len(ran))))


class LowerTest(parameterized.TestCase):

  @parameterized.parameters(*itertools.product((1, 2, 3, 5), (1, 4, 9), (None, 0.0, math.inf)))
  def test_every_size(self, num_stages, num_microbatches, budget):
    size = (num_stages, num_microbatches)
    table = make_table(*size, budget=budget)

    # Nothing is lost, done twice, or read from a slot that holds another one.
    check.check(table)
    rows = check.as_rows(table)
    for s, row in make_rows(*size).items():
      for op in (Op.FORWARD, Op.BACKWARD):
        own = lambda row, op=op: [i for i in row if i.op is op]
        self.assertEqual(own(rows[s]), own(row))
    num_redundant = lay_out(table).num_redundant
    if budget is None or num_stages == 1:
      self.assertEqual(num_redundant, 0)
    elif budget == 0.0:
      self.assertAlmostEqual(find_overhead(table), 0.0)
    else:
      self.assertEqual(num_redundant, num_stages * num_microbatches)

  def test_microbatches_and_nodes_are_counted_from_zero(self):
    # The second pipeline of two: nodes 2 and 3, microbatches 4 to 7.
    schedule = simulate_lib.simulate(
        [lines_lib.Line((2, 3), range(4, 8), (2, 1))], costs=schedules.uniform_costs(2)
    )
    self.assertEqual(
        lowering.lower(schedule.instructions, owners=(2, 3), microbatches=range(4, 8)),
        make_table(2, 4),
    )

  def test_refuses(self):
    with self.assertRaisesRegex(ValueError, r"next one only.*\[0, 1, 0, 2\]"):
      lowering.lower({}, owners=(0, 1, 0, 2), microbatches=(0,))
    rows = {0: (instruction_lib.Instruction(0, Op.BACKWARD, 0),), 1: ()}
    with self.assertRaisesRegex(ValueError, "wait for each other"):
      lowering.lower(rows, owners=(0, 1), microbatches=(0,))

  @parameterized.parameters(0.0, 0.05, 0.1, 0.3, math.inf)
  def test_keeps_to_the_budget(self, budget):
    table = make_table(4, 8, costs=TIGHT, budget=budget)
    plain = make_table(4, 8, costs=TIGHT)
    check.check(table)
    span_ms = plan_lib.lay_out(table, TIGHT).span_ms
    plain_ms = plan_lib.lay_out(plain, TIGHT).span_ms
    self.assertLessEqual(span_ms, plain_ms * (1.0 + budget) + 1e-6)


class RestTest(parameterized.TestCase):
  """Any node may die after any tick; who is left finishes the step."""

  def finish(self, table, num_ticks, victims):
    """Returns the table of the rest of a step."""
    contents = check.find_contents(table, num_ticks)
    held = {
        n: table_lib.Held(
            activations={**c.held.activations, **c.outputs},
            grads={**c.held.grads, **c.input_grads},
            residuals=c.held.residuals,
            host={**c.held.host, **c.offloaded},
            accumulated=c.held.accumulated,
        )
        for n, c in enumerate(contents)
    }
    roles = failover.Roles.initial(table.owners)
    holdings = {n: own.holdings() for n, own in held.items()}
    roles, left = failover.fail_over(roles, holdings, victims)
    microbatches = range(table.num_microbatches)
    schedule = simulate_lib.simulate(
        [lines_lib.Line(roles.owners, microbatches)],
        costs=schedules.uniform_costs(table.num_stages),
        holdings=left,
    )
    start = {n: held[n] for n in roles.nodes}
    for own in list(start.values()):  # Gradients are sent again.
      for stage, m in own.grads:
        owner = roles.owners[stage]
        grads = {**start[owner].grads, (stage, m): -1}
        start[owner] = dataclasses.replace(start[owner], grads=grads)
    return lowering.lower(
        schedule.instructions,
        owners=roles.owners,
        microbatches=microbatches,
        start=start,
        most_residuals=2 * table.num_stages + 1,
    )

  @parameterized.parameters((2, 4, 1), (3, 5, 1), (4, 16, 5))
  def test_every_cut(self, num_stages, num_microbatches, every):
    room = num_microbatches + num_stages
    for budget in (None, 0.0):
      table = make_table(num_stages, num_microbatches, budget=budget)
      cuts = range(0, len(table.ticks) + 1, every)
      for t, victim in itertools.product(cuts, range(num_stages)):
        rest = self.finish(table, t, {victim})
        check.check(rest)
        redone = redone_lib.find_redone(
            table, rest, lost={victim}, num_ticks=t, segment_ticks=num_stages
        )
        self.assertLessEqual(redone.again, redone.at_most, (t, victim))
        # One executable has room for all of them.
        self.assertLessEqual(rest.num_slots["activations"], room)
        self.assertLessEqual(rest.num_slots["grads"], room)
        self.assertLessEqual(rest.num_slots["residuals"], 2 * num_stages + 2)
        if budget is not None and t == len(table.ticks):
          # All that is owed is redundant backward passes, lazily.
          ran = sum(len(n.forwards) for r in rest.ticks for n in r)
          self.assertEqual(redone.from_host + ran, num_microbatches)


class TickTableTest(absltest.TestCase):

  def test_two_microbatches_through_two_stages(self):
    table = make_table(2, 2)
    make = table_lib.Pass
    self.assertEqual(
        table.ticks[1],
        (
            table_lib.Tick((make(1, 0, 0, residual=1),), arriving_grads=0),
            table_lib.Tick(
                (make(0, 1, 0, inputs=0, residual=0),), make(0, 1, 0, residual=0), arriving_inputs=0
            ),
        ),
    )
    array = table.as_array(1, 4)
    self.assertEqual(array.dtype, np.int32)
    self.assertEqual(array.shape, (2, 3, table_lib.NUM_FIELDS))
    self.assertEqual(array[1, 0, :7].tolist(), [0, 1, 0, 0, 0, -1, -1])
    self.assertEqual(array[1, 0, 28:35].tolist(), [0, 1, 0, -1, 0, -1, -1])
    self.assertEqual(array[:, 0, -2:].tolist(), [[-1, 0], [0, -1]])
    # Beyond the end nothing is done.
    self.assertEqual(table.as_array(4, 5)[:, :, ::7].max(), -1)

  def test_residuals_that_leave_are_counted_by_segment(self):
    table = make_table(4, 8, budget=0.0)
    slots = [table.offloads(1, t, t + 4) for t in range(0, 14, 4)]
    self.assertEqual(sorted(key for own in slots for key in own), [(2, m) for m in range(8)])
    for own in slots:
      self.assertEqual(sorted(own.values()), list(range(len(own))))

  def test_stages_of_a_node(self):
    self.assertEqual(table_lib.stages_of((0, 1, 2), 1), (1, 2))
    self.assertEqual(table_lib.stages_of((0, 1, 2), 2), (2, 0))
    self.assertEqual(table_lib.stages_of((0, 1, 1), 1), (1, 2))
    self.assertEqual(table_lib.stages_of((1, 0, 1), 1), (2, 0))
    self.assertEqual(table_lib.stages_of((0, 0), 0), (0, 1))
    self.assertEqual(table_lib.stages_of((0, 0, 1, 0), 0), (3, 0, 1))
    self.assertEqual(table_lib.stages_of((0, 0, 0), 0), (0, 1, 2))

  def test_rings(self):
    for owners in ((0, 1, 2), (2, 2, 0, 2), (0, 1, 0, 1), (5, 5)):
      self.assertTrue(table_lib.is_ring(owners), owners)
    for owners in ((0, 1, 0, 2), (0, 2, 1, 0, 1)):
      self.assertFalse(table_lib.is_ring(owners), owners)


class CheckTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("pass_lost", 2, 0, dict(backward=table_lib.Pass()), "does not run|not"),
      ("input_lost", 0, 1, dict(arriving_inputs=-1), "not there"),
      ("grad_lost", 1, 0, dict(arriving_grads=-1), "not there"),
      ("no_such_slot", 1, 0, dict(arriving_grads=7), "no slot 7 of grads"),
  )
  def test_refuses(self, t, n, change, message):
    table = make_table(2, 2)
    check.check(table)
    with self.assertRaisesRegex(check.ScheduleError, message):
      check.check(self.change(table, t, n, **change))

  @parameterized.named_parameters(
      ("residual", dict(residual=1), "Slot 1 of residuals"),
      ("host", dict(host=0), "Slot 0 in host memory"),
      ("grad", dict(inputs=1), "Slot 1 of grads"),
  )
  def test_refuses_a_backward_pass(self, change, message):
    table = make_table(2, 2)
    backward = dataclasses.replace(table.ticks[2][0].backward, **change)
    with self.assertRaisesRegex(check.ScheduleError, message):
      check.check(self.change(table, 2, 0, backward=backward))

  def test_refuses_one_slot_too_few(self):
    table = make_table(3, 4)
    slots = {**table.num_slots, "residuals": 3}
    with self.assertRaisesRegex(check.ScheduleError, "no slot 3 of residuals"):
      check.check(dataclasses.replace(table, num_slots=slots))

  def change(self, table, t, n, **change):
    ticks = [list(tick) for tick in table.ticks]
    ticks[t][n] = dataclasses.replace(ticks[t][n], **change)
    return dataclasses.replace(table, ticks=tuple(map(tuple, ticks)))


class TimelineTest(absltest.TestCase):

  def test_a_tick_lasts_as_long_as_its_busiest_node(self):
    table = make_table(2, 2, budget=0.0)
    self.assertEqual(
        grid_lib.render_grid(plan_lib.lay_out(table, schedules.uniform_costs(2))).splitlines(),
        [
            "node 0 F0  F1  RF0 RF1 B0      ....B1      ",
            "node 1 RF0 F0  B0      F1  B1      RF1 ....",
            "       36 columns are 9 ms, bubble 11.1 %",
        ],
    )

  def test_a_tick_ends_with_the_exchange(self):
    costs = schedules.uniform_costs(2, transfer_ms=0.5)
    table = make_table(2, 1, costs=costs)
    # F0, then F0 and B0, then B0, each with a transfer in both directions.
    self.assertEqual(plan_lib.lay_out(table, costs).span_ms, 6.0 + 3 * 1.0)
