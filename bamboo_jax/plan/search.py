"""Searches the contiguous splits of layers into stages.

Costs of single stages are minimised by dynamic programming, in
O(num_stages * num_layers**2). With conditions on several stages, such as the
memory of a node that holds two, the search is best first: prefixes of splits in
the order of their lower bounds, which dynamic programming gives for the other
stages. The first whole split is the best. Prefixes that no later condition
distinguishes are tried once.
"""

from collections.abc import Callable, Collection, Sequence
import dataclasses
import heapq
from typing import Any, TypeVar

from bamboo_jax import base

Pair = tuple[int, int]
_Value = TypeVar("_Value", int, Pair)

# Returns the cost of a stage, given its first layer and the one after its last;
# None if it is not allowed.
Charge = Callable[[base.StageId, int, int], _Value | None]
# Combines costs; associative and monotone.
Combine = Callable[[_Value, _Value], _Value]
_Rest = dict[int, _Value]

_MOST_TRIED = 200_000  # Most prefixes that are tried; takes seconds.


def add_pairs(a: Pair, b: Pair) -> Pair:
  """Returns the sums of both entries."""
  return a[0] + b[0], a[1] + b[1]


@dataclasses.dataclass(frozen=True)
class Condition:
  """A condition on a split.

  Attributes:
    holds: Returns whether it holds, given the first layer of each stage up to
      the last of `stages`, and the layer after that.
  """

  stages: frozenset[base.StageId]
  holds: Callable[[Sequence[int]], bool]


@dataclasses.dataclass(frozen=True)
class Search:
  """The splits of layers into stages that end at one of `ends`."""

  num_layers: int
  num_stages: int
  ends: frozenset[int]

  def best(
      self, charge: Charge[_Value], combine: Combine[_Value]
  ) -> tuple[_Value, tuple[int, ...]]:
    """Returns the least combined charge and the bounds of a split that has it.

    If `combine` is strictly monotone, the bounds are the first in lexicographic
    order.
    """
    rests, choices = self._find_rests(charge, combine)
    assert 0 in rests[0], "no split is allowed"
    bounds = [0]
    for choice in choices:
      bounds.append(choice[bounds[-1]])
    return rests[0][0], tuple(bounds)

  def best_that_holds(
      self, charge: Charge[_Value], combine: Combine[_Value], conditions: Collection[Condition]
  ) -> tuple[_Value, tuple[int, ...]] | None:
    """Returns the result of `best` for splits that fulfil `conditions`.

    None if there is none, or if the search reached its limit.
    """
    rests, _ = self._find_rests(charge, combine)
    due: list[list[Condition]] = [[] for _ in range(self.num_stages)]
    for condition in conditions:
      due[max(condition.stages)].append(condition)
    shared = _find_shared(self.num_stages, conditions)
    waiting: list[tuple[_Value, tuple[int, ...], _Value | None]] = []
    if 0 in rests[0]:
      waiting.append((rests[0][0], (0,), None))
    seen: set[tuple[Any, ...]] = set()
    num_tried = 0
    while waiting:
      least, bounds, spent = heapq.heappop(waiting)
      stage = base.StageId(len(bounds) - 1)
      if stage == self.num_stages:
        return least, bounds
      ends = tuple(bounds[s : s + 2] for s in shared[stage])
      key = (stage, bounds[-1], ends)
      if key in seen:
        continue
      seen.add(key)
      for last in self._lasts(stage, bounds[-1]):
        cost = charge(stage, bounds[-1], last) if last in self.ends else None
        if cost is None or last not in rests[stage + 1]:
          continue
        num_tried += 1
        longer = bounds + (last,)
        if not all(condition.holds(longer) for condition in due[stage]):
          continue
        total = cost if spent is None else combine(spent, cost)
        is_whole = stage + 1 == self.num_stages
        rest = total if is_whole else combine(total, rests[stage + 1][last])
        heapq.heappush(waiting, (rest, longer, total))
      if num_tried > _MOST_TRIED:
        return None
    return None

  def _lasts(self, stage: base.StageId, first: int) -> Sequence[int]:
    """Returns the possible ends of `stage`, with a layer for each later one."""
    later_stages = self.num_stages - stage - 1
    if not later_stages:
      return (self.num_layers,)
    return range(first + 1, self.num_layers - later_stages + 1)

  def _find_rests(
      self, charge: Charge[_Value], combine: Combine[_Value]
  ) -> tuple[list[_Rest[_Value]], list[dict[int, int]]]:
    """Returns lower bounds of the stages from each one on, and the splits.

    Both by stage and first layer; the second has the end of the stage.
    """
    # After the last stage there is nothing to combine with.
    rests: list[Any] = [{self.num_layers: None}]
    choices: list[dict[int, int]] = []
    for stage in reversed(base.stages(self.num_stages)):
      costs: dict[int, _Value] = {}
      choice: dict[int, int] = {}
      firsts = range(stage, self.num_layers) if stage else (0,)
      for first in firsts:
        for last in self._lasts(stage, first):
          if last not in rests[0]:
            continue
          cost = charge(stage, first, last) if last in self.ends else None
          if cost is None:
            continue
          if stage + 1 < self.num_stages:
            cost = combine(cost, rests[0][last])
          if first not in costs or cost < costs[first]:
            costs[first] = cost
            choice[first] = last
      rests.insert(0, costs)
      choices.insert(0, choice)
    return rests, choices


def _find_shared(
    num_stages: int, conditions: Collection[Condition]
) -> list[tuple[base.StageId, ...]]:
  """Returns, by stage, the earlier ones in a condition with a later one."""

  def find(stage: base.StageId) -> tuple[base.StageId, ...]:
    joined = [c.stages for c in conditions if max(c.stages) >= stage]
    return tuple(sorted({s for own in joined for s in own if s < stage}))

  return [find(stage) for stage in base.stages(num_stages)]
