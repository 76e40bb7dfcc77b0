"""Figures of a trace: live nodes, preemptions, bulks, lifetimes, prices."""

import bisect
import collections
from collections.abc import Callable, Iterator, Sequence
import itertools
import statistics

from bamboo_jax.traces import trace as trace_lib


def summarize(trace: trace_lib.Trace) -> dict[str, float]:
  """Returns the figures of a trace by the names shown to users.

  Means are over the whole length, least and most from the first instant on.
  """
  hours = trace.duration_ms / trace_lib.MS_PER_HOUR
  live = [count for _, count in trace.live_steps()]
  alive_ms = sum(n * (end - start) for start, end, n in live_spans(trace))
  mean_nodes = alive_ms / trace.duration_ms
  lives_ms = [end_ms - start.time_ms for start, end_ms in trace.lives() if end_ms is not None]
  lifetimes = [ms / trace_lib.MS_PER_HOUR for ms in lives_ms]
  zones = [{e.zone for e in events if e.kind == "remove"} for _, events in trace.instants()]
  bulks = count_bulks(trace)
  num_instants = sum(bulks.values())
  return {
      "hours": hours,
      "live nodes, mean": mean_nodes,
      "live nodes, least": min(live),
      "live nodes, most": max(live),
      "preempted nodes": len(lifetimes),
      "preemptions per node-hour": len(lifetimes) / (mean_nodes * hours or 1.0),
      "hours to preemption, median": statistics.median(lifetimes or [0.0]),
      "instants of preemption": num_instants,
      "instants in several zones": sum(len(names) > 1 for names in zones),
      "nodes per instant, mean": len(lifetimes) / (num_instants or 1),
      "nodes per instant, most": max(bulks, default=0),
      "nodes given notice": sum(event.kind == "notice" for event in trace.events),
  }


def count_bulks(trace: trace_lib.Trace) -> collections.Counter[int]:
  """Returns the number of instants by the number of nodes that they remove."""
  lost = (sum(e.kind == "remove" for e in events) for _, events in trace.instants())
  return collections.Counter(filter(None, lost))


def live_spans(trace: trace_lib.Trace) -> Iterator[tuple[int, int, int]]:
  """Yields start and end in ms, and live nodes, from the first instant on."""
  steps = (*trace.live_steps(), (trace.duration_ms, 0))
  for (start, count), (end, _) in itertools.pairwise(steps):
    yield start, end, count


def mean_usd_per_hour(trace: trace_lib.Trace) -> float | None:
  """Returns the price of a node, averaged over the time of all nodes.

  All live nodes are paid for, so the bill of a trace depends on nothing else. None if the trace
  has no prices, or no node is ever alive. Raises `ValueError` if only other zones have prices.
  """
  bills = {
      zone: _sum_bills([price for price in trace.prices if price.zone == zone])
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


def _sum_bills(prices: Sequence[trace_lib.Price]) -> Callable[[int], float]:
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
