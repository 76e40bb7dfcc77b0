"""Figures of a trace: live nodes, preemptions, bulks, lifetimes, prices."""

import bisect
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import statistics

from bamboo_jax.traces import trace as trace_lib


@dataclasses.dataclass(frozen=True)
class TraceSummary:
  """Figures of a trace.

  Attributes:
    mean_nodes: Live nodes, averaged over the whole length.
    min_nodes: Fewest live nodes, from the first instant on.
    bulks: Number of instants by the number of nodes that they remove.
    num_zone_instants: Instants that remove nodes of more than one zone.
  """

  hours: float
  mean_nodes: float
  min_nodes: int
  max_nodes: int
  bulks: Mapping[int, int]
  num_zone_instants: int
  lifetimes_hours: tuple[float, ...]
  num_notices: int

  @property
  def node_hours(self) -> float:
    """Live time, summed over nodes."""
    return self.mean_nodes * self.hours

  @property
  def num_instants(self) -> int:
    """Number of times at which nodes are preempted."""
    return sum(self.bulks.values())

  @property
  def num_preempted(self) -> int:
    return len(self.lifetimes_hours)

  @property
  def preempted_per_node_hour(self) -> float:
    """Preemptions per node and hour; 0 if no node is ever alive."""
    return self.num_preempted / self.node_hours if self.node_hours else 0.0

  def figures(self) -> dict[str, float]:
    """Returns the figures by the names shown to users."""
    lifetimes = self.lifetimes_hours or (0.0,)
    return {
        "hours": self.hours,
        "live nodes, mean": self.mean_nodes,
        "live nodes, least": self.min_nodes,
        "live nodes, most": self.max_nodes,
        "preempted nodes": self.num_preempted,
        "preemptions per node-hour": self.preempted_per_node_hour,
        "hours to preemption, median": statistics.median(lifetimes),
        "instants of preemption": self.num_instants,
        "instants in several zones": self.num_zone_instants,
        "nodes per instant, mean": self.num_preempted / (self.num_instants or 1),
        "nodes per instant, most": max(self.bulks, default=0),
        "nodes given notice": self.num_notices,
    }


def summarize(trace: trace_lib.Trace) -> TraceSummary:
  lives_ms = [end_ms - start.time_ms for start, end_ms in trace.lives() if end_ms is not None]
  lost = (
      collections.Counter(e.zone for e in events if e.kind == "remove")
      for _, events in trace.instants()
  )
  losses = [zones for zones in lost if zones]  # By zone, for each instant with losses.
  live = [count for _, count in trace.live_steps()]
  alive_ms = sum(n * (end - start) for start, end, n in live_spans(trace))
  return TraceSummary(
      hours=trace.duration_ms / trace_lib.MS_PER_HOUR,
      mean_nodes=alive_ms / trace.duration_ms,
      min_nodes=min(live),
      max_nodes=max(live),
      bulks=collections.Counter(sum(zones.values()) for zones in losses),
      num_zone_instants=sum(len(zones) > 1 for zones in losses),
      lifetimes_hours=tuple(ms / trace_lib.MS_PER_HOUR for ms in lives_ms),
      num_notices=sum(event.kind == "notice" for event in trace.events),
  )


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
