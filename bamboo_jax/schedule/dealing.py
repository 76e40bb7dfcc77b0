"""Deals work over all nodes that hold its stages, so that a step ends soonest.

After a death the shadow owes all work of the victim, and the others wait for
it. But the owners and shadows of all pipelines hold the stage. So single shares
of single stages move from the busiest node to one with less to do, one by one:

  ms left       shadow 0   owner 5 (same stage)   owner 4
                  24          3                      3
  0 gives 5       21          6                      3      ...
                  15         12                      3      ends

These are sums of owed time. The rest of the step is then planned with all
moves, without the last one, and so on, while the bound by the busiest node
allows a better result; the plan that ends first is taken. A share of a stage
stays on one node, in the order of its microbatches, and shares are summed in
order, so the results are the same to the bit. Pure.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
from typing import Any

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    lines as lines_lib,
    scheduler,
)
from bamboo_jax.schedule.scheduling import owed as owed_lib

Line = lines_lib.Line
# Stages whose state a node has.
Copies = Mapping[base.NodeId, Collection[base.StageId]]

_ByNode = dict[base.NodeId, float]
# A taker of a share: node, new owners, their owed ms, sum of these.
_Way = tuple[base.NodeId, tuple[base.NodeId, ...], _ByNode, float]
_LEAST_GAIN_MS = 1e-6  # Least gain of a move.
_NUM_PLANS = 12  # Most choices that are planned.


def deal(
    lines: Sequence[Line],
    *,
    copies: Copies,
    costs: costs_lib.StageCosts,
    holdings: lines_lib.Holdings | None = None,
    share_size: int,
    least_gain: float = 0.0,
) -> tuple[Line, ...]:
  """Returns the lines with which the step, or its rest, ends soonest.

  Args:
    lines: The lines before shares are moved to other nodes.
    copies: Stages whose state each node has.
    holdings: Data that each node holds now. Summed microbatches do not move.
    share_size: Number of microbatches of a share, which stay together.
    least_gain: Fraction by which moves must shorten the step.

  Raises `base.InfeasibleError` if the step cannot be finished with `lines`.
  """
  search = _Search(copies, costs, holdings or {}, share_size)
  shares = search.cut(lines)
  choices = [*search.improve(shares)]
  last = len(choices) - 1
  best = tuple(lines)
  if not last:  # Often, if shares are coarse.
    return best
  end_ms = functools.partial(scheduler.span_ms, costs=costs, holdings=holdings)
  best_ms = end_ms(best) * (1.0 - least_gain)
  some = {k * last // _NUM_PLANS for k in range(1, _NUM_PLANS + 1)}
  for index in sorted(some - {0}, reverse=True):
    shares, most_ms = choices[index]
    if most_ms >= best_ms:
      break  # Nor with fewer moves.
    choice = tuple(_join(shares))
    with contextlib.suppress(base.InfeasibleError):
      if (ms := end_ms(choice)) < best_ms - _LEAST_GAIN_MS:
        best, best_ms = choice, ms
  return best


def _join(shares: Sequence[Line]) -> list[Line]:
  """Returns lines of all shares with the same owners."""
  joined: dict[tuple[Any, ...], list[int]] = {}
  for line in shares:
    way = line.owners, line.in_flight, line.pipeline
    joined.setdefault(way, []).extend(line.microbatches)
  return [
      Line(owners, sorted(microbatches), in_flight, pipeline)
      for (owners, in_flight, pipeline), microbatches in joined.items()
  ]


def _spread(index: int) -> int:
  """Returns the rank of a share in an order whose first entries lie far apart.

  So the moved shares are spread over the step, and both routes are in use
  throughout, although few microbatches are in flight at once.
  """
  return int(f"{index:032b}"[::-1], 2)


@dataclasses.dataclass(frozen=True)
class _Search:
  """Searches for moves; caches the possible ones of a share."""

  copies: Copies
  costs: costs_lib.StageCosts
  holdings: lines_lib.Holdings
  share_size: int
  _ways: dict[Any, list[_Way]] = dataclasses.field(default_factory=dict)

  def cut(self, lines: Sequence[Line]) -> list[Line]:
    """Returns a line for each share."""
    shares = []
    for line in lines:
      runs: dict[int, list[int]] = {}
      for m in line.microbatches:
        runs.setdefault(m // self.share_size, []).append(m)
      shares += [dataclasses.replace(line, microbatches=tuple(run)) for run in runs.values()]
    return shares

  def improve(self, shares: list[Line]) -> Iterator[tuple[list[Line], float]]:
    """Yields `shares` after each move, and the busiest node's owed time, ms."""
    owed = [self._owed_ms(line.owners, line.microbatches) for line in shares]
    while True:
      left_ms: _ByNode = dict.fromkeys(sorted(self.copies), 0.0)
      for one in owed:
        for node, ms in one.items():
          left_ms[node] = left_ms.get(node, 0.0) + ms
      busiest = max(left_ms, key=left_ms.__getitem__)
      yield shares, left_ms[busiest]
      moves = self._moves(busiest, shares, owed, left_ms)
      best = min(moves, default=None, key=lambda move: move[0])
      if best is None or best[0][0] > left_ms[busiest] - _LEAST_GAIN_MS:
        return
      _, index, owners, owed_ms = best
      shares, owed = [*shares], [*owed]
      shares[index] = dataclasses.replace(shares[index], owners=owners)
      owed[index] = owed_ms

  def _moves(
      self, giver: base.NodeId, shares: Sequence[Line], owed: Sequence[_ByNode], left_ms: _ByNode
  ) -> Iterator[tuple[Any, ...]]:
    """Yields moves from a node: price, share, its new owners, their owed ms.

    The price is the time that the busier of both nodes owes afterwards, then
    the sum over all nodes.
    """
    for index, (line, before) in enumerate(zip(shares, owed, strict=True)):
      if not before.get(giver):
        continue
      key = line.owners, line.microbatches, giver
      if (ways := self._ways.get(key)) is None:
        ways = self._ways[key] = [*self._find_ways(*key)]
      kept_ms = left_ms[giver] - before[giver]
      for taker, owners, after, total_ms in ways:
        taker_ms = left_ms[taker] - before.get(taker, 0.0) + after[taker]
        most_ms = max(kept_ms + after.get(giver, 0.0), taker_ms)
        price = (most_ms, total_ms, _spread(index), taker)
        yield price, index, owners, after

  def _find_ways(
      self, owners: Sequence[base.NodeId], microbatches: Sequence[int], giver: base.NodeId
  ) -> Iterator[_Way]:
    """Yields takers of a share's stages: node, new owners, their owed ms, sum.

    A taker gets one stage, or all that it can.
    """
    summed = self.holdings.get(giver, holdings_lib.NOTHING).accumulated
    free = [
        s
        for s, owner in base.by_stage(owners)
        if owner == giver and not any((s, m) in summed for m in microbatches)
    ]
    for taker, held in self.copies.items():
      can = [s for s in free if s in held]
      if taker == giver or not can:
        continue
      groups = [[s] for s in can] + ([can] if len(can) > 1 else [])
      for group in groups:
        after = tuple(taker if s in group else owner for s, owner in enumerate(owners))
        try:
          owed_ms = self._owed_ms(after, microbatches)
        except base.InfeasibleError:
          continue
        yield taker, after, owed_ms, sum(owed_ms.values())

  def _owed_ms(self, owners: Sequence[base.NodeId], microbatches: Sequence[int]) -> _ByNode:
    """Returns the time in ms that each node owes for microbatches."""
    costs = self.costs
    left_ms: _ByNode = {}
    owed = owed_lib.find_owed(
        owners=owners, microbatches=microbatches, holdings=self.holdings, shadows={}, redundant=()
    )
    for s, node in enumerate(owners):
      pass_ms = len(owed.forwards[s]) * costs.forward_ms[s]
      pass_ms += len(owed.backwards[s]) * costs.backward_ms[s]
      left_ms[node] = left_ms.get(node, 0.0) + pass_ms
    for transfer in owed.transfers:
      left_ms[transfer.destination] += costs.transfer_ms[transfer.stage]
    return left_ms
