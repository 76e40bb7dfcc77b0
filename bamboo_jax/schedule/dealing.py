"""Deals the owed work of a step to all nodes that hold its stages, so that it ends soonest.

After a death the shadow owes all work of the victim, and the others wait for
it. But the owners and shadows of all pipelines hold the stage. So single shares
of single stages move from the busiest node to one with less to do, one by one:

  ms left       shadow 0   owner 5 (same stage)   owner 4
                  24          3                      3
  0 gives 5       21          6                      3      ...
                  15         12                      3      ends

These are sums of owed time, so the rest of the step is simulated with all moves
and with some of them, and the one that ends first is taken. A share of a stage
stays on one node, in the order of its microbatches, and shares are summed in
order, so the results are the same to the bit. Pure.
"""

import collections
from collections.abc import Collection, Iterator, Mapping, Sequence
import contextlib
import functools
import itertools

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    lines as lines_lib,
    simulate as simulate_lib,
)

Line = lines_lib.Line
# Stages whose state a node has.
Copies = Mapping[base.NodeId, Collection[base.StageId]]

_Times = collections.defaultdict[base.NodeId, float]

_LEAST_GAIN_MS = 1e-6  # Least gain of a move.
_FRACTIONS = (1.0, 0.75, 0.5, 0.25)  # Of the moves, that are simulated.


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
  shares = [
      line._replace(microbatches=tuple(share))
      for line in lines
      for _, share in itertools.groupby(line.microbatches, lambda m: m // share_size)
  ]
  choices = [*_improve(shares, copies, costs, holdings or {})]
  best, last = tuple(lines), len(choices) - 1
  if not last:  # Often, if shares are coarse.
    return best
  simulate = functools.partial(simulate_lib.simulate, costs=costs, holdings=holdings)
  best_ms = simulate(best).span_ms * (1.0 - least_gain)
  for index in sorted({round(f * last) for f in _FRACTIONS} - {0}, reverse=True):
    choice = tuple(_join(choices[index]))
    with contextlib.suppress(base.InfeasibleError):
      if (ms := simulate(choice).span_ms) < best_ms - _LEAST_GAIN_MS:
        best, best_ms = choice, ms
  return best


def _join(shares: Sequence[Line]) -> list[Line]:
  """Returns lines of all shares with the same owners."""
  joined: dict[Line, list[int]] = {}
  for line in shares:
    way = line._replace(microbatches=())
    joined.setdefault(way, []).extend(line.microbatches)
  return [way._replace(microbatches=tuple(sorted(ms))) for way, ms in joined.items()]


def _spread(index: int) -> int:
  """Returns the rank of a share in an order whose first entries lie far apart.

  So the moved shares are spread over the step, and both routes are in use
  throughout, although few microbatches are in flight at once.
  """
  return int(f"{index:032b}"[::-1], 2)


def _improve(
    shares: list[Line], copies: Copies, costs: costs_lib.StageCosts, holdings: lines_lib.Holdings
) -> Iterator[list[Line]]:
  """Yields `shares`, then the result of each move that relieves the busiest node."""

  @functools.cache
  def owed_ms(line: Line) -> _Times:
    """Returns the time in ms that each node owes for a share."""
    left_ms = _Times(float)
    owed = lines_lib.find_owed(line, holdings)
    for s, node in base.by_stage(line.owners):
      left_ms[node] += len(owed.forwards[s]) * costs.forward_ms[s]
      left_ms[node] += len(owed.backwards[s]) * costs.backward_ms[s]
    for transfer in owed.transfers:
      left_ms[transfer.destination] += costs.time_ms(transfer)
    return left_ms

  @functools.cache
  def find_ways(line: Line, giver: base.NodeId) -> list[tuple[base.NodeId, Line]]:
    """Returns takers of a share's stages on a node: one stage, or all that they can."""
    summed = holdings.get(giver, holdings_lib.NOTHING).accumulated
    free = [
        s
        for s, owner in base.by_stage(line.owners)
        if owner == giver and not any((s, m) in summed for m in line.microbatches)
    ]
    ways = []
    for taker, held in copies.items():
      can = [s for s in free if s in held]
      if taker == giver or not can:
        continue
      for group in [[s] for s in can] + ([can] if len(can) > 1 else []):
        ends = base.by_stage(line.owners)
        moved = line._replace(owners=tuple(taker if s in group else n for s, n in ends))
        with contextlib.suppress(base.InfeasibleError):
          owed_ms(moved)
          ways.append((taker, moved))
    return ways

  while True:
    yield shares
    left_ms = _Times(float, dict.fromkeys(sorted(copies), 0.0))
    for line in shares:
      for node, ms in owed_ms(line).items():
        left_ms[node] += ms
    busiest = max(left_ms, key=left_ms.__getitem__)
    moves = []
    for index, line in enumerate(shares):
      before = owed_ms(line)
      for taker, moved in find_ways(line, busiest) if before[busiest] else ():
        after = owed_ms(moved)
        most_ms = max(left_ms[n] - before[n] + after[n] for n in (busiest, taker))
        moves.append((most_ms, sum(after.values()), _spread(index), taker, index, moved))
    best = min(moves, default=None, key=lambda move: move[:4])
    if best is None or best[0] > left_ms[busiest] - _LEAST_GAIN_MS:
      return
    *_, index, moved = best
    shares = [*shares[:index], moved, *shares[index + 1 :]]
