"""Spot prices of nodes, for traces that have prices.

All live nodes are paid for, so the bill of a trace depends on nothing else: it
is the price of a node, averaged over the time of all nodes, times that time.
"""

import bisect
from collections.abc import Callable, Sequence
import itertools

from bamboo_jax.traces import trace as trace_lib


def mean_usd_per_hour(trace: trace_lib.Trace) -> float | None:
  """Returns the price of a node, averaged over the time of all nodes.

  None if the trace has no prices, or no node is ever alive. Raises `ValueError`
  if only other zones have prices.
  """
  bills = {
      zone: _sum_up([price for price in trace.prices if price.zone == zone])
      for zone in {price.zone for price in trace.prices}
  }
  alive_ms = paid = 0.0
  for start, end_ms in trace.lives() if bills else ():
    if (bill := bills.get(start.zone, bills.get(""))) is None:
      raise ValueError(
          f"Trace {trace.name!r} has prices of the zones {sorted(bills)}, but "
          f"none for nodes of {start.zone!r}."
      )
    end_ms = trace.duration_ms if end_ms is None else end_ms
    alive_ms += end_ms - start.time_ms
    paid += bill(end_ms) - bill(start.time_ms)
  return paid / alive_ms if alive_ms else None


def _sum_up(prices: Sequence[trace_lib.Price]) -> Callable[[int], float]:
  """Returns the cost of a node until a time, in ms times dollars per hour.

  The first price holds from the start.
  """
  times_ms = [0, *(price.time_ms for price in prices[1:])]
  spans_ms = [b - a for a, b in itertools.pairwise(times_ms)]
  costs = (price.usd_per_hour * ms for price, ms in zip(prices, spans_ms, strict=False))
  sums = [0.0, *itertools.accumulate(costs)]

  def bill(time_ms: int) -> float:
    i = bisect.bisect_right(times_ms, time_ms) - 1
    return sums[i] + (time_ms - times_ms[i]) * prices[i].usd_per_hour

  return bill
