"""Training goes on without the disk as long as each layer has a copy anywhere.

All sequences of deaths: in one step, and with steps in between, after which
places are filled and replicas made. Nodes that have the same part are one.
"""

import itertools

from absl.testing import parameterized

from bamboo_jax.recovery import decide, moves
from tests import layouts


def make_rules(num_stages, kind, mode, reroute):
  given = dict(mode=mode, reroute=reroute, per_share=1)
  if kind == "depth":
    return layouts.make_rules(num_stages, 3, **given)
  return layouts.make_rules(
      num_stages,
      3,
      num_layers=2 * num_stages - 1,
      layout="grid" if kind == "grid" else "templates",
      method="rules" if kind == "rules" else "replanning",
      split="makespan",
      **given,
  )


def name_of(start, layout, members):
  """Returns what tells a state from others, whoever the nodes are."""
  pipelines = start.pipelines + layout.pipelines
  order = [n for p in pipelines for n in p.roles.owners]
  order = [*dict.fromkeys((*order, *sorted(members)))]
  numbers = {node: i for i, node in enumerate(order)}
  return (
      tuple(
          (
              p.partition.bounds,
              tuple(numbers[n] for n in p.roles.owners),
              tuple((s, numbers[n]) for s, n in p.roles.shadows.items()),
              tuple(sorted(p.vacant)),
          )
          for p in pipelines
      ),
      tuple(sorted(numbers[n] for n in members)),
  )


class LastCopyTest(parameterized.TestCase):

  @parameterized.product(
      size=[(2, 1), (3, 1), (2, 2), (3, 2), (2, 3)],
      how=[
          ("depth", "shares"),
          ("depth", "whole_shares"),
          ("templates", "shares"),
          *itertools.product(["depth", "rules", "grid"], ["none"]),
      ],
      mode=["lazy", "none"],
  )
  def test_all_sequences(self, size, how, mode):
    num_stages, num_pipelines = size
    rules = make_rules(num_stages, how[0], mode, how[1])
    members = frozenset(range(num_stages * num_pipelines))
    first = rules.start(rules.planner.fresh(sorted(members), {}))
    waiting, seen, ends = [], set(), 0

    def visit(start, layout, members):
      name = name_of(start, layout, members)
      if name not in seen:
        seen.add(name)
        waiting.append((start, layout, members))

    visit(first, first, members)
    while waiting:
      # What the nodes of `start` had then they have until the step ends.
      start, layout, members = waiting.pop()
      for victim in sorted(members):
        left = members - {victim}
        change = rules.lose(layout, left, zones={})
        if moves.lost_layers(start.pipelines, left):
          ends += 1
          self.assertNotIn(change.rung, decide.IMMEDIATE)
          continue
        self.assertFalse(change.rolls_back, (layout, victim))
        self.assertNotEmpty(change.layout.pipelines, (layout, victim))
        for copy in change.copies:
          self.assertIn(copy.source, left)
          self.assertIn((copy.source, copy.stage), layout.copies)
        goes_on = change.rung in decide.IMMEDIATE
        visit(start if goes_on else change.layout, change.layout, left)
      # Vacant pipelines make the update too, so their state is still of use.
      self.assertEmpty(moves.lost_layers(layout.pipelines, members))
      after = rules.improve(layout, members, zones={})
      self.assertFalse(after.rolls_back)
      visit(after.layout, after.layout, members)
    self.assertGreater(ends, 0)
