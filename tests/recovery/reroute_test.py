"""What a dead node owes is dealt over all that hold its stages.

Whoever dies, and when: nothing is lost or done twice, no node waits for ever,
and each share of a stage is with one node.
"""

import dataclasses
import itertools
import random

from absl.testing import parameterized

from bamboo_jax.recovery import layout as layout_lib, moves
from bamboo_jax.schedule import holdings as holdings_lib, instruction as instruction_lib
from tests import layouts, samples
from tests.schedule import deaths

Op = instruction_lib.Op


class Steps:
  """Steps of a cluster in which nodes are to die; pure."""

  def __init__(self, rules):
    self.rules = rules
    self._plans = layout_lib.StepPlans(rules.plan)

  def whole(self, layout):
    """Returns the rows of a step."""
    timelines, _ = self._plans.whole(layout)
    return {n: row for t in timelines for n, row in t.instructions.items()}

  def die(self, layout, held, lost):
    """Returns layout, holdings and rows after a death; None if it ends.

    Planning refuses work that is lost or repeated, and deadlock.
    """
    left = layout.nodes - lost
    held = {n: h for n, h in held.items() if n in left}
    change = self.rules.lose(layout, left, zones={}, holdings=held)
    has_copies = not moves.lost_layers(layout.pipelines, left)
    assert change.is_immediate == has_copies, (layout, lost, change.rung)
    if not has_copies:
      return None
    after = change.layout
    assert after.nodes == left
    assert sorted(s for own in after.shares for s in own) == [
        *range(self.rules.plan.batch.num_shares)
    ]
    assert all(left.issuperset(row) for _, row, _ in after.ways)
    for _, row, _ in after.ways:
      assert after.copies.issuperset((n, s) for s, n in enumerate(row))
    now, size = owners_of(after), self.rules.plan.batch
    is_kept = len(after.pipelines) == len(layout.pipelines)
    for share, row in owners_of(layout).items() if is_kept else ():
      own = size.microbatches_of([share])  # Its sums stay where they are.
      for segment, node in enumerate(row):
        if node in left and any((segment, m) in held[node].accumulated for m in own):
          assert now[share][segment] == node, (share, segment)
    timelines = self._plans.rest(after, held)
    return after, held, {n: row for t in timelines for n, row in t.instructions.items()}


def owners_of(layout):
  """Returns who computes each segment of each share."""
  return {share: row for _, row, own in layout.ways for share in own}


def make_steps(num_stages, num_shares, num_pipelines, mode, per_share=1):
  """Returns steps of equal pipelines, and their layout."""
  rules = layouts.make_rules(
      num_stages, num_shares, mode=mode, split="makespan", per_share=per_share, reroute="shares"
  )
  nodes = range(num_stages * num_pipelines)
  return Steps(rules), rules.start(rules.planner.fresh(nodes, {}))


class EveryDeathTest(parameterized.TestCase):

  @parameterized.parameters(
      *samples.draw(
          [("lazy", 2, 4, 2), ("eager", 2, 4, 2), ("none", 2, 4, 2), ("eager", 3, 2, 2)], 2
      )
  )
  def test_every_cut(self, mode, num_stages, num_shares, num_pipelines):
    steps, layout = make_steps(num_stages, num_shares, num_pipelines, mode)
    cuts, seen, count = deaths.Cuts(steps.whole(layout)), set(), 0
    for cut in cuts:
      for victim in sorted(layout.nodes):
        place = cuts.nodes.index(victim)
        left = (victim, *cut[:place], *cut[place + 1 :])
        if left not in seen:
          seen.add(left)
          count += steps.die(layout, cuts.holdings(cut), {victim}) is not None
    self.assertGreater(count, 500)

  # Until some stage has no copy left: 3 s.
  @parameterized.parameters(
      *samples.draw(itertools.product(["lazy", "eager", "none"], ["depth", "any"]), 2)
  )
  def test_one_after_the_other(self, mode, kind):
    rng, dealt, rungs = random.Random(f"{mode} {kind}"), 0, []
    if kind == "any":
      rules = layouts.make_rules(
          2, 8, num_layers=6, layout="templates", split="makespan", mode=mode, per_share=1
      )
      steps = Steps(rules)
      first = rules.start(rules.planner.fresh(range(7), {}))
    else:
      steps, first = make_steps(3, 6, 2, mode, per_share=2)
    for _ in range(12):
      layout, rows, held = first, steps.whole(first), None
      while True:
        cuts = deaths.Cuts(rows, held)
        held = cuts.holdings(cuts.draw(rng))
        size = min(rng.choice([1, 1, 2]), len(layout.nodes))
        lost = {*rng.sample(sorted(layout.nodes), size)}
        found = steps.die(layout, held, lost)
        rungs.append(found is not None)
        if found is None:
          break
        layout, held, rows = found
        dealt += layout.is_joint
    self.assertGreater(dealt, 5)
    self.assertGreater(sum(rungs), 12)


class StepsAfterTest(parameterized.TestCase):

  def test_until_repair_the_work_is_balanced(self):
    steps, layout = make_steps(4, 16, 2, "lazy")
    left = layout.nodes - {1}
    change = steps.rules.lose(layout, left, zones={}, holdings={})
    after = steps.rules.improve(change.layout, left, zones={}).layout
    self.assertNotEmpty(after.detours)
    again = steps.rules.improve(after, left, zones={}).layout
    self.assertEqual(again, after)
    plain = dataclasses.replace(after, detours={})
    plans = layout_lib.StepPlans(steps.rules.plan)
    spans = [max(t.span_ms for t in plans.whole(l)[0]) for l in (layout, plain, after)]
    self.assertLess(spans[2], 0.98 * spans[1])
    # Of eight nodes seven are left.
    self.assertLess(spans[2], 1.15 * 8 / 7 * spans[0])

  def test_with_a_memory_limit_the_shadow_does_all(self):
    steps, layout = make_steps(4, 16, 2, "lazy")
    plan = dataclasses.replace(steps.rules.plan, memory_limit_bytes=1 << 40)
    limited = dataclasses.replace(steps.rules, plan=plan)
    for rules, deals in ((steps.rules, True), (limited, False)):
      left = layout.nodes - {1}
      change = rules.lose(layout, left, zones={}, holdings={})
      self.assertEqual(bool(change.layout.detours), deals)

  def test_a_whole_share_begins_from_the_start(self):
    rules = layouts.make_rules(3, 2, per_share=2, reroute="whole_shares")
    layout = rules.start(rules.planner.fresh(range(6), {}))
    held = {0: holdings_lib.Holdings(activations=frozenset({(0, 0), (0, 1)}))}
    change = rules.lose(layout, {0, 3, 4, 5}, zones={}, holdings=held)
    self.assertEqual(change.layout.shares, ((), (0, 1)))
    plans = layout_lib.StepPlans(rules.plan)
    (rest,) = plans.rest(change.layout, held)
    (whole,), _ = plans.whole(change.layout)
    for timeline in (rest, whole):
      self.assertEqual({slot.node for slot in timeline.slots}, {3, 4, 5})
    passes = [s.instruction for s in rest.slots if s.instruction.op is Op.FORWARD]
    self.assertLen(passes, 3 * 4)
