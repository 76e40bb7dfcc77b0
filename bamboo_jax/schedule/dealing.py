"""Deals work over all nodes that hold its stages, so that a step ends soonest.

After a death the shadow owes all that the victim did, and the others wait for
it. But a stage is held by its owners and shadows in all pipelines. So single
shares of single stages go from the node that has most left to do to one that
has less, one by one:

  ms left       shadow 0   owner 5 (same stage)   owner 4
                  24          3                      3
  0 gives 5       21          6                      3      ...
                  15         12                      3      ends

These are sums of what is owed; the rest of the step is then planned after some
of the moves, from the last on, while the busiest node leaves room for a better
one; the one that ends first is taken. A share of a stage stays
with one node, in the order of its microbatches, and shares are summed in order:
so the bits are the same. Pure.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
import contextlib
import dataclasses
from typing import Any

from bamboo_jax import base
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import lines as lines_lib
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.schedule.scheduling import owed as owed_lib

Line = lines_lib.Line
Copies = Mapping[int, Collection[int]]  # By node, stages whose state it has.

_LEAST_GAIN_MS = 1e-6  # Of a move.
_NUM_PLANS = 12  # Of all choices, at most so many are planned.


def deal(
    lines: Sequence[Line],
    *,
    copies: Copies,
    costs: costs_lib.StageCosts,
    holdings: lines_lib.Holdings | None = None,
    share_size: int,
    least_gain: float = 0.0,
) -> tuple[Line, ...]:
  """Returns lines whose step, or what is left of it, ends soonest.

  Args:
    lines: As they would be without moves; of them the work is taken.
    holdings: At this moment. What has been summed stays where it is.
    share_size: Microbatches that must stay together, from a multiple of it on.
    least_gain: By which fraction the step must become shorter.

  Raises `base.InfeasibleError`: the step cannot be finished with `lines`.
  """
  search = _Search(copies, costs, holdings or {}, share_size)
  choices = [*search.improve(search.cut(lines))]
  last = len(choices) - 1

  def end_ms(choice: Sequence[Line]) -> float:
    rows = scheduler.plan_rows(choice, costs=costs, holdings=holdings).rows
    return timeline_lib.span_ms(rows, costs)

  best = tuple(lines)
  best_ms = end_ms(best) * (1.0 - least_gain)
  some = {k * last // _NUM_PLANS for k in range(1, _NUM_PLANS + 1)}
  for index in sorted(some - {0}, reverse=True):
    shares, most_ms = choices[index]
    if most_ms >= best_ms:
      break  # So it is after fewer moves.
    choice = tuple(_join(shares))
    with contextlib.suppress(base.InfeasibleError):
      if (ms := end_ms(choice)) < best_ms - _LEAST_GAIN_MS:
        best, best_ms = choice, ms
  return best


def _join(shares: Sequence[Line]) -> list[Line]:
  """Returns lines of all shares with the same owners."""
  joined: dict[tuple, list[int]] = {}
  for line in shares:
    way = line.owners, line.in_flight, line.pipeline
    joined.setdefault(way, []).extend(line.microbatches)
  return [
      Line(owners, sorted(microbatches), in_flight, pipeline)
      for (owners, in_flight, pipeline), microbatches in joined.items()
  ]


def _spread(index: int) -> int:
  """Returns where a share stands in an order whose first ones lie far apart.

  What moves is taken from all over the step: both ways are used all the time,
  where few microbatches are in flight at once.
  """
  return int(f"{index:032b}"[::-1], 2)


@dataclasses.dataclass(frozen=True)
class _Search:
  """Looks for moves; what has been found of a share is kept."""

  copies: Copies
  costs: costs_lib.StageCosts
  holdings: lines_lib.Holdings
  share_size: int
  _ways: dict[Any, list[tuple]] = dataclasses.field(default_factory=dict)

  def cut(self, lines: Sequence[Line]) -> list[Line]:
    """Returns a line for each share."""
    shares = []
    for line in lines:
      runs: dict[int, list[int]] = {}
      for m in line.microbatches:
        runs.setdefault(m // self.share_size, []).append(m)
      shares += [
          dataclasses.replace(line, microbatches=tuple(run))
          for run in runs.values()
      ]
    return shares

  def improve(self, shares: list[Line]) -> Iterator[tuple[list[Line], float]]:
    """Yields `shares` after each move, and what the busiest node has left."""
    owed = [self._owed_ms(line.owners, line.microbatches) for line in shares]
    while True:
      left_ms: dict[int, float] = dict.fromkeys(sorted(self.copies), 0.0)
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
      self,
      giver: int,
      shares: Sequence[Line],
      owed: Sequence[Mapping[int, float]],
      left_ms: Mapping[int, float],
  ) -> Iterator[tuple]:
    """Yields moves from a node: price, share, its owners, and what they owe.

    The price is what the busier of both then has left, and all nodes together.
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
      self, owners: Sequence[int], microbatches: Sequence[int], giver: int
  ) -> Iterator[tuple[int, tuple[int, ...], dict[int, float], float]]:
    """Yields who may take stages of a share; its owners, what they owe, sum.

    It takes one stage, or all that it can.
    """
    summed = self.holdings.get(giver, holdings_lib.NOTHING).accumulated
    free = [
        s
        for s, owner in enumerate(owners)
        if owner == giver and not any((s, m) in summed for m in microbatches)
    ]
    for taker, held in self.copies.items():
      can = [s for s in free if s in held]
      if taker == giver or not can:
        continue
      groups = [[s] for s in can] + ([can] if len(can) > 1 else [])
      for group in groups:
        after = tuple(
            taker if s in group else owner for s, owner in enumerate(owners)
        )
        try:
          owed_ms = self._owed_ms(after, microbatches)
        except base.InfeasibleError:
          continue
        yield taker, after, owed_ms, sum(owed_ms.values())

  def _owed_ms(
      self, owners: Sequence[int], microbatches: Sequence[int]
  ) -> dict[int, float]:
    """Returns what each node has left to do for microbatches."""
    costs, left_ms = self.costs, {}
    owed = owed_lib.find_owed(
        owners=owners,
        microbatches=microbatches,
        holdings=self.holdings,
        shadows={},
        redundant=(),
    )
    for s, node in enumerate(owners):
      pass_ms = len(owed.forwards[s]) * costs.forward_ms[s]
      pass_ms += len(owed.backwards[s]) * costs.backward_ms[s]
      left_ms[node] = left_ms.get(node, 0.0) + pass_ms
    for transfer in owed.transfers:
      left_ms[transfer.destination] += costs.transfer_ms[transfer.stage]
    return left_ms
