import dataclasses
import itertools
import math

from absl.testing import absltest, parameterized

from bamboo_jax.runtime.spmd import plan as plan_lib, ticks as ticks_lib
from bamboo_jax.schedule import (
    costs as costs_lib,
    failover,
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
    simulate as simulate_lib,
    timeline as timeline_lib,
)
from tests import schedules
from tests.runtime.spmd import tick_player

Op = instruction_lib.Op

# There is room beside the passes of a tick at both ends of a step only.
TIGHT = costs_lib.StageCosts(forward_ms=(1.0,) * 4, backward_ms=(0.5,) * 4, transfer_ms=(0.0,) * 3)


def simulate(owners, num_microbatches, holdings=None):
  bounds = lines_lib.in_flight_limits(len(owners))
  line = lines_lib.Line(owners, range(num_microbatches), bounds)
  costs = schedules.uniform_costs(len(owners))
  return simulate_lib.simulate([line], costs=costs, holdings=holdings).slots


def make_table(num_stages, num_microbatches, *, budget=None, costs=None):
  owners = range(num_stages)
  slots = simulate(owners, num_microbatches)
  table = ticks_lib.lower(slots, owners=owners, microbatches=range(num_microbatches))
  if budget is None or num_stages == 1:
    return table
  costs = costs or schedules.uniform_costs(num_stages)
  return ticks_lib.fill(table, costs=costs, budget=budget)


def lay_out(table, **options):
  costs = schedules.uniform_costs(table.num_stages)
  return plan_lib.lay_out(table, dataclasses.replace(costs, **options))


def find_overhead(table):
  plain = lay_out(table, redundant_ms=(0.0,) * table.num_stages)
  return lay_out(table).span_ms / plain.span_ms - 1.0


def place(table, op):
  """Returns the tick of each pass of an operation, by stage and microbatch."""
  return {
      (i.stage, i.microbatch): t
      for t, tick in enumerate(table.ticks)
      for own in tick
      for i in own
      if i.op is op
  }


class LowerTest(parameterized.TestCase):

  @parameterized.product(num_stages=[1, 2, 3, 5, 8], num_microbatches=[1, 2, 5, 9])
  def test_each_pass_has_its_tick(self, num_stages, num_microbatches):
    table = make_table(num_stages, num_microbatches)
    last = num_stages - 1
    everything = list(itertools.product(range(num_stages), range(num_microbatches)))
    self.assertEqual(place(table, Op.FORWARD), {(s, m): m + s for s, m in everything})
    self.assertEqual(place(table, Op.BACKWARD), {(s, m): m + 2 * last - s for s, m in everything})
    self.assertEqual(lay_out(table).span_ms, 3 * (num_microbatches + last))
    in_flight = min(2 * num_stages - 1, num_microbatches)
    sizes = table.least_sizes(1, keeps=True)
    self.assertEqual((sizes.residuals, sizes.spare), (in_flight, 0))

  @parameterized.parameters(*itertools.product((1, 2, 3, 5), (1, 4, 9), (None, 0.0, math.inf)))
  def test_every_size(self, num_stages, num_microbatches, budget):
    table = make_table(num_stages, num_microbatches, budget=budget)
    nothing = [holdings_lib.NOTHING] * num_stages
    self.assertEqual(tick_player.find_start(table), nothing)  # All that is read arrives.
    for widen in (0, 2):  # A program may have more slots.
      tick_player.check(table, widen=widen)
    num_redundant = lay_out(table).num_redundant
    if budget is None or num_stages == 1:
      self.assertEqual(num_redundant, 0)
    elif budget == 0.0:
      self.assertAlmostEqual(find_overhead(table), 0.0)
    else:
      self.assertEqual(num_redundant, num_stages * num_microbatches)

  def test_microbatches_and_nodes_are_counted_from_zero(self):
    # The second pipeline of two: nodes 2 and 3, microbatches 4 to 7.
    line = lines_lib.Line((2, 3), range(4, 8), (2, 1))
    slots = simulate_lib.simulate([line], costs=schedules.uniform_costs(2)).slots
    self.assertEqual(
        ticks_lib.lower(slots, owners=(2, 3), microbatches=range(4, 8)), make_table(2, 4)
    )

  def test_residuals_that_nothing_reads_have_a_slot(self):
    """A forward pass for its output alone writes them, too."""
    F, B = Op.FORWARD, Op.BACKWARD
    passes = [(0, F, 2), (0, F, 0), (1, F, 0), (1, B, 0), (1, F, 2), (1, B, 2), (0, B, 2)]
    order = [(0, instruction_lib.Instruction(*one)) for one in passes]
    table = ticks_lib.lower(order, owners=(0, 0), microbatches=range(3), in_flight=2)
    self.assertEqual(table.least_sizes(1, keeps=True).residuals, 3)


class FillTest(parameterized.TestCase):

  # As `3 (M + P - 1)` units are all that ideal 1F1B takes.
  @parameterized.parameters((4, 8, 31), (8, 16, 127), (4, 16, 33))
  def test_passes_that_are_free(self, num_stages, num_microbatches, count):
    size = (num_stages, num_microbatches)
    self.assertEqual(lay_out(make_table(*size, budget=0.0)).num_redundant, count)
    if num_microbatches == 2 * num_stages:
      self.assertLessEqual(find_overhead(make_table(*size, budget=math.inf)), 0.05)

  @parameterized.parameters(0.0, 0.05, 0.1, 0.3, math.inf)
  def test_keeps_to_the_budget(self, budget):
    table = make_table(4, 8, costs=TIGHT, budget=budget)
    tick_player.check(table)
    span_ms = plan_lib.lay_out(table, TIGHT).span_ms
    plain_ms = plan_lib.lay_out(make_table(4, 8), TIGHT).span_ms
    self.assertLessEqual(span_ms, plain_ms * (1.0 + budget) + 1e-6)
    if budget == 0.3:
      self.assertGreater(span_ms, plain_ms)


class RestTest(parameterized.TestCase):
  """Any node may die after any tick; who is left finishes the step."""

  def finish(self, table, num_ticks, victims):
    """Returns the table of the rest of a step, which needs nothing that nobody has left."""
    held, sizes = {}, table.least_sizes(3, keeps=True)
    for n, start in enumerate(tick_player.find_start(table)):
      contents = [*table.find_contents(n, num_ticks, sizes)]
      places = {(kind, segment, slot) for (kind, _), segment, slot in contents}
      self.assertLen(contents, len(places))
      done = tick_player.find_accumulated(table, n, num_ticks)
      activations, gradients, residuals = (
          getattr(start, kind) | {key for (name, key), _, _ in contents if name == kind}
          for kind in ticks_lib.KINDS
      )
      held[n] = holdings_lib.Holdings(activations, gradients, residuals - done, done)
    roles = failover.Roles.initial(table.owners)
    roles, _ = failover.fail_over(roles, victims)
    left = failover.find_valid(roles, held)
    rest = ticks_lib.lower(
        simulate(roles.owners, table.num_microbatches, left),
        owners=roles.owners,
        microbatches=range(table.num_microbatches),
        in_flight=table.num_stages,
    )
    received = {(n, i.stage, i.microbatch) for n, i in rest.moves if i.is_receive}
    for n, start in zip(dict.fromkeys(roles.owners), tick_player.find_start(rest), strict=True):
      has = left[n]
      self.assertEqual(start.accumulated, {k for k in has.accumulated if roles.owners[k[0]] == n})
      self.assertLessEqual(start.residuals, has.residuals)
      passed = (start.activations - has.activations) | (start.gradients - has.gradients)
      self.assertLessEqual({(n, *key) for key in passed}, received)
    return rest

  @parameterized.parameters((2, 4, 1), (3, 5, 1), (4, 16, 5))
  def test_every_cut(self, num_stages, num_microbatches, every):
    for budget in (None, 0.0):
      table = make_table(num_stages, num_microbatches, budget=budget)
      cuts = range(0, len(table.ticks) + 1, every)
      for t, victim in itertools.product(cuts, range(num_stages)):
        rest = self.finish(table, t, {victim})
        tick_player.check(rest, widen=t % 2)
        starts, least = tick_player.find_start(rest), rest.least_sizes(3, keeps=True)
        kept = {key for start in starts for key in start.residuals}
        forwards = place(table, Op.FORWARD)
        through = {key for key, tick in forwards.items() if tick < t}
        broken = {key for key, tick in forwards.items() if t <= tick < t + num_stages}
        gone = {key for key in through if key[0] == victim}
        # Repeated are passes of the segment in which the node died, and its own, but for
        # those that its shadow had run.
        ran = place(rest, Op.FORWARD).keys()
        self.assertLessEqual(len(ran & (through | broken)), len(broken | (gone - kept)))
        # One executable has room for all of them.
        self.assertLessEqual(least.residuals, num_stages)
        self.assertEqual(least.spare, 0)
        self.assertLessEqual(least.fetches, num_microbatches + 2 * num_stages - 1)
        if budget is not None and t == len(table.ticks):
          # All that is owed is redundant backward passes, lazily.
          from_host = sum(stage == victim for stage, _ in kept)
          self.assertEqual(from_host + len(ran), num_microbatches)
          self.assertGreaterEqual(from_host, num_microbatches - 2)


class TickTableTest(absltest.TestCase):

  def test_stages_of_a_node(self):
    for owners, node, want in (
        ((0, 1, 2), 1, (1, 2)),
        ((0, 1, 2), 2, (2, 0)),
        ((0, 1, 1), 1, (1, 2)),
        ((1, 0, 1), 1, (2, 0)),
        ((0, 0), 0, (0, 1)),
        ((0, 0, 1, 0), 0, (3, 0, 1)),
        ((0, 0, 0), 0, (0, 1, 2)),
    ):
      self.assertEqual(ticks_lib.stages_of(owners, node), want, owners)

  def test_rings(self):
    for owners in ((0, 1, 2), (2, 2, 0, 2), (0, 1, 0, 1), (5, 5)):
      self.assertTrue(ticks_lib.is_ring(owners), owners)
    for owners in ((0, 1, 0, 2), (0, 2, 1, 0, 1)):
      with self.assertRaises(AssertionError):
        ticks_lib.lower((), owners=owners, microbatches=(0,))


class TimelineTest(absltest.TestCase):

  def test_a_tick_lasts_as_long_as_its_busiest_node(self):
    table = make_table(2, 2, budget=0.0)
    self.assertEqual(
        timeline_lib.render_grid(plan_lib.lay_out(table, schedules.uniform_costs(2))).splitlines(),
        [
            "node 0 F0  F1  RF0 RF1 B0      ....B1      ",
            "node 1 RF0 F0  B0      F1  B1      RF1 ....",
            "       36 columns are 9.00 ms, bubble 11.1 %",
        ],
    )

  def test_a_tick_ends_with_the_exchange(self):
    costs = schedules.uniform_costs(2, transfer_ms=0.5)
    table = make_table(2, 1, costs=costs)
    # F0, then F0 and B0, then B0, each with a transfer in both directions.
    self.assertEqual(plan_lib.lay_out(table, costs).span_ms, 6.0 + 3 * 1.0)
