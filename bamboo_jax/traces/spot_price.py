"""Spot prices of nodes, for traces that have prices.

All live nodes are paid for, so the bill of a trace depends on nothing else: it
is the price of a node, averaged over the time of all nodes, times that time.
"""

import bisect
import itertools

from bamboo_jax.traces import trace as trace_lib


def mean_usd_per_hour(trace: trace_lib.Trace) -> float | None:
  """Returns the price of a node, averaged over the time of all nodes.

  None if the trace has no prices, or no node is ever alive. Raises `ValueError`
  if only other zones have prices.
  """
  bills = {
      zone: _Bill([price for price in trace.prices if price.zone == zone])
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
    paid += bill.until(end_ms) - bill.until(start.time_ms)
  return paid / alive_ms if alive_ms else None


class _Bill:
  """Sums up the prices of a zone; the first holds from the start."""

  def __init__(self, prices: list[trace_lib.Price]) -> None:
    self._usd_per_hour = [price.usd_per_hour for price in prices]
    self._times_ms = [0, *(price.time_ms for price in prices[1:])]
    spans_ms = (b - a for a, b in itertools.pairwise(self._times_ms))
    pairs = zip(self._usd_per_hour, spans_ms, strict=False)
    costs = (usd_per_hour * span_ms for usd_per_hour, span_ms in pairs)
    self._sums = [0.0, *itertools.accumulate(costs)]

  def until(self, time_ms: int) -> float:
    """Returns the cost of a node until a time, in ms times dollars per hour."""
    i = bisect.bisect_right(self._times_ms, time_ms) - 1
    rest_ms = time_ms - self._times_ms[i]
    return self._sums[i] + rest_ms * self._usd_per_hour[i]
