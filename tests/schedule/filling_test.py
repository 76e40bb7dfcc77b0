"""Which redundant forward pass runs in which wait, and what that comes to."""

import functools
import heapq
import itertools
import random
import statistics
from typing import NamedTuple

from absl.testing import absltest, parameterized

from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.schedule import (
    costs as costs_lib,
    failover,
    filling as filling_lib,
    instruction as instruction_lib,
    scheduler,
)

Op = instruction_lib.Op
Instruction = instruction_lib.Instruction


def redundant(stage, microbatch):
  return Instruction(stage, Op.REDUNDANT_FORWARD, microbatch)


def plan_step(mode, num_stages, num_microbatches, **options):
  """Returns a step with passes of 20 and 40 ms, and transfers of 0.5 ms."""
  costs = costs_lib.StageCosts(
      forward_ms=(20.0,) * num_stages,
      backward_ms=(40.0,) * num_stages,
      transfer_ms=(0.5,) * (num_stages - 1),
  )
  made, roles = rows_lib.Redundancy(mode, **options), failover.Roles.initial(range(num_stages))
  plan = made.plan(
      roles,
      microbatches=range(num_microbatches),
      costs=costs,
      in_flight=scheduler.one_f_one_b_bounds(num_stages),
  )
  return plan, made.fill([plan], [roles], costs)


def walk(node, slots, filling, stretch, time_of, done):
  """Walks a row; yields what it asks for, gets the present time or a truth."""
  activations, ran = set(), set()

  def run(i):
    start_ms = yield "now", None
    yield "until", start_ms + time_of(i)
    done.append((i, start_ms / 1e3, (start_ms + time_of(i)) / 1e3))
    if i.op is Op.FORWARD:
      activations.add((i.stage, i.microbatch))

  def fill(receive):
    while filling and (i := filling.find_next(ran, activations)):
      if receive and (yield "has", receive.transfer(node)):
        return
      now_ms = (yield "now", None) / stretch
      if not filling.fits(i, receive, now_ms=now_ms):
        return
      ran.add(i)
      yield from run(i)

  for slot in slots:
    i = slot.instruction
    if i.is_send:
      yield "send", i.transfer(node)
    elif i.is_receive:
      yield from fill(i)
      yield "receive", i.transfer(node)
    else:
      yield from run(i)
  yield from fill(None)


def play(lazy, nodes, *, stretch, time_of):
  """Plays a step; returns its time in ms, and the passes of each node."""
  done = {node: [] for node in lazy.rows}
  walkers = {
      node: walk(node, row, nodes.get(node), stretch, time_of, done[node])
      for node, row in lazy.rows.items()
  }
  arrived, waiting, counter, now = {}, {}, itertools.count(), 0.0
  heap = [(0.0, next(counter), node, None) for node in walkers]
  while heap:
    now, _, node, answer = heapq.heappop(heap)
    while True:
      try:
        what, value = walkers[node].send(answer)
      except StopIteration:
        break
      answer = None
      if what == "now":
        answer = now
      elif what == "has":
        answer = arrived.get(value, now + 1.0) <= now
      elif what == "send":
        arrived[value] = now + 0.5
        if value in waiting:
          other = waiting.pop(value)
          heapq.heappush(heap, (now + 0.5, next(counter), other, None))
      elif what == "until" or value in arrived:
        until = value if what == "until" else max(now, arrived[value])
        heapq.heappush(heap, (until, next(counter), node, None))
        break
      else:
        waiting[value] = node
        break
  of = functools.partial(filling_lib.Ran.of, since_secs=0.0)
  return now, {node: of(passes) for node, passes in done.items()}


class _Means(NamedTuple):
  ratio: float
  overhead: float
  coverage: float


def play_steps(mode, *, jitter, num_steps=40, **options):
  """Plays steps of 4 stages and 8 microbatches, and learns from them.

  Returns means: the ratio of their time to that without redundant passes, and
  overhead and coverage as a run measures them.
  """
  plan, filling = plan_step(mode, 4, 8, **options)
  stretches, ratios, effects = [], [], []
  for step in range(num_steps):

    def time_of(i, step=step):
      mean = 40.0 if i.op is Op.BACKWARD else 20.0
      draw = random.Random(f"{step} {i}").uniform(1 - jitter, 1 + jitter)
      return mean * draw

    least_ms, _ = play(plan.lazy, {}, stretch=1.0, time_of=time_of)
    span_ms, ran = play(
        plan.lazy,
        filling.nodes,
        stretch=filling_lib.find_stretch(stretches[-filling_lib.NUM_STEPS :] or [1.0]),
        time_of=time_of,
    )
    effect = filling.find_effect(ran)
    stretches.append(effect.stretch)
    ratios.append(span_ms / least_ms)
    effects.append(effect)
  return _Means(
      statistics.fmean(ratios),
      statistics.fmean(e.overhead for e in effects),
      statistics.fmean(e.coverage for e in effects),
  )


class FillingTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._receive = Instruction(0, Op.RECV_GRAD, 0, peer=1)

  def _make(self, **limits):
    passes = [redundant(1, m) for m in range(3)]
    return filling_lib.Filling(
        passes=passes,
        durations_ms=dict.fromkeys(passes, 10.0),
        latest_ms={self._receive: 50.0},
        span_ms=80.0,
        **limits,
    )

  @parameterized.parameters(
      # Nothing is planned to be longer: 40 + 10.
      (dict(), 40.0, True),
      (dict(), 40.1, False),
      (dict(margin=0.5), 35.0, True),
      (dict(margin=0.5), 35.1, False),
      # Late by one and a half passes.
      (dict(margin=-1.5), 55.0, True),
      (dict(margin=-1.5), 55.1, False),
      (dict(margin=0.5, allowed_ms=4.0), 39.0, True),
      (dict(margin=0.5, allowed_ms=4.0), 39.1, False),
  )
  def test_fits_into_a_wait(self, limits, now_ms, want):
    got = self._make(**limits).fits(redundant(1, 0), self._receive, now_ms=now_ms)
    self.assertEqual(got, want)

  @parameterized.parameters(
      (dict(), 70.0, True),
      (dict(), 70.1, False),
      (dict(margin=0.5), 65.0, True),
      (dict(margin=0.5), 65.1, False),
      # It would lengthen the step, and protect nothing by then.
      (dict(margin=-1.5, allowed_ms=9.0), 70.1, False),
  )
  def test_fits_at_the_end(self, limits, now_ms, want):
    got = self._make(**limits).fits(redundant(1, 0), None, now_ms=now_ms)
    self.assertEqual(got, want)

  @parameterized.parameters(
      ((), (), None),
      ((), ((0, 2), (0, 1)), 1),
      ((1,), ((0, 2), (0, 1)), 2),
      ((1, 2), ((0, 2), (0, 1), (1, 0)), None),
  )
  def test_the_next_pass_has_its_input(self, done, activations, want):
    got = self._make().find_next({redundant(1, m) for m in done}, activations)
    self.assertEqual(got, None if want is None else redundant(1, want))

  def test_the_first_stage_needs_no_input(self):
    filling = plan_step("bubble", 2, 2)[1].nodes[1]
    self.assertEqual(filling.find_next((), ()), redundant(0, 0))

  def test_latest_times(self):
    plan, _ = plan_step("bubble", 2, 2)
    latest_ms = filling_lib.find_latest_ms(plan.lazy)
    got = {
        f"{node}: {slot.instruction}": (slot.end_ms, latest_ms[node, slot.instruction])
        for node, row in plan.lazy.rows.items()
        for slot in row
    }
    self.assertEqual(
        got,
        {
            "0: 0F0": (20.0, 20.0),
            "0: 0SA0>1": (20.0, 20.0),
            # It is sent after the gradient has come.
            "0: 0F1": (40.0, 80.5),
            "0: 0RG0<1": (81.0, 81.0),
            "0: 0SA1>1": (81.0, 81.0),
            "0: 0B0": (121.0, 141.5),
            "0: 0RG1<1": (142.0, 142.0),
            "0: 0B1": (182.0, 182.0),
            "1: 0RA0<0": (20.5, 20.5),
            "1: 1F0": (40.5, 40.5),
            "1: 1B0": (80.5, 80.5),
            "1: 0SG0>0": (80.5, 80.5),
            "1: 0RA1<0": (81.5, 81.5),
            "1: 1F1": (101.5, 101.5),
            "1: 1B1": (141.5, 141.5),
            "1: 0SG1>0": (141.5, 141.5),
        },
    )

  @parameterized.parameters(
      ("none", None),
      ("lazy", None),
      ("bubble", (0.25, 0.0)),
      ("budget", (0.25, 0.05)),
      ("eager", (-1.6, 0.0)),
  )
  def test_modes(self, mode, want):
    _, filling = plan_step(mode, 2, 2)
    if want is None:
      self.assertIsNone(filling)
      return
    for own in filling.nodes.values():
      allowed = own.allowed_ms / own.span_ms
      self.assertEqual((own.margin, round(allowed, 9)), want)


class EffectTest(parameterized.TestCase):

  def test_of_a_step(self):
    plan, filling = plan_step("bubble", 2, 2)
    time_of = lambda i: 40.0 if i.op is Op.BACKWARD else 20.0
    _, ran = play(plan.lazy, filling.nodes, stretch=1.0, time_of=time_of)
    self.assertEqual(
        ran[0],
        filling_lib.Ran(
            (20000, 20000, 40000, 40000), (filling_lib.Filled(2, 1, 0, 20000),), 182_000
        ),
    )
    got = filling.find_effect(ran)
    self.assertEqual((got.passes, got.overhead, got.stretch), (2, 0.0, 1.0))

  def test_a_longer_pass_costs(self):
    plan, filling = plan_step("bubble", 2, 2)
    ran = {
        0: filling_lib.Ran(
            (20000, 20000, 40000, 40000),
            (filling_lib.Filled(2, 1, 0, 78150),),
            2 * 219_150,  # Twice as long as its passes tell.
        ),
        1: filling_lib.Ran((20000, 40000, 20000, 40000), (), 300_000),
    }
    # The gradient waits from 81 to 118.15 ms, and the activation behind it.
    got = filling.find_effect(ran)
    self.assertEqual(got.passes, 1)
    self.assertAlmostEqual(got.overhead, 37.15 / 182.0)
    self.assertAlmostEqual(got.stretch, 2.0)

  def test_none_if_something_else_has_run(self):
    _, filling = plan_step("bubble", 2, 2)
    four, three = filling_lib.Ran((1, 2, 3, 4)), filling_lib.Ran((1, 2, 3))
    for ran in ({}, {0: four}, {0: four, 1: three}):
      with self.subTest(ran=ran):
        self.assertIsNone(filling.find_effect(ran))

  def test_jitter(self):
    bubble = play_steps("bubble", jitter=0.3, margin=0.05)
    eager = play_steps("eager", jitter=0.3)
    self.assertLess(bubble.ratio, 1.015)
    self.assertLess(eager.ratio, 1.06)
    self.assertGreater(eager.coverage, 0.73)
    self.assertGreater(bubble.coverage, 0.75 * eager.coverage)
    for got in (bubble, eager):  # What a run measures is what it cost.
      self.assertAlmostEqual(got.overhead, got.ratio - 1.0, delta=0.005)

  def test_the_budget_is_a_limit(self):
    for budget in (0.0, 0.05):
      got = play_steps("budget", jitter=0.3, budget=budget)
      with self.subTest(budget=budget):
        self.assertBetween(got.ratio, 1.0, 1.01 + budget)


if __name__ == "__main__":
  absltest.main()
