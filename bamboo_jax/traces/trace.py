"""Traces: when the nodes of a cluster join, get notice, and leave.

A trace records, or imitates, how a provider preempts the nodes of a cluster;
the simulator predicts its cost, a cluster of processes replays it. Times are
whole milliseconds, so that the order of events never depends on rounding. Figures
of a trace are its live nodes, preemptions, bulks, lifetimes and prices.
"""

import bisect
import collections
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import itertools
import math
import operator
import re
import statistics

from bamboo_jax import base

KINDS = ("add", "remove", "notice")

MS_PER_HOUR = 3_600_000
MAX_MS = 10 * 366 * 24 * MS_PER_HOUR  # Ten years: longer traces are mistakes.
MAX_LIVE = 100_000  # Per zone: more would fill memory for hours.

Step = tuple[int, int]  # Time in ms, number of live nodes from then on.


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
  """An event of one node.

  Attributes:
    time_ms: From the start of the trace.
    kind: One of `KINDS`: the node joins, is preempted, or gets notice of that.
    node: Its name, such as "node7", or "zone/7" if the zone is known.
  """

  time_ms: int
  kind: str
  node: str

  def __post_init__(self) -> None:
    if self.time_ms < 0:
      raise ValueError(f"time_ms must be at least 0, got {self.time_ms}.")
    if self.kind not in KINDS:
      raise ValueError(base.suggest(self.kind, KINDS, what="kind of event"))
    if not re.fullmatch(r"[^\s,]+", self.node):
      raise ValueError(f"node must be a name without spaces or commas, got {self.node!r}.")

  @property
  def zone(self) -> str:
    return zone_of(self.node)

  def __str__(self) -> str:
    return f"{self.time_ms},{self.kind},{self.node}"


def zone_of(node: str) -> str:
  """Returns the part of a name before its last slash; may be empty."""
  return node.rpartition("/")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Price:
  """The spot price of a node of a zone from a time on.

  Without a zone it holds for all nodes, except those of zones with prices.
  """

  time_ms: int
  usd_per_hour: float
  zone: str = ""

  def __post_init__(self) -> None:
    if self.time_ms < 0 or not 0 < self.usd_per_hour < math.inf:
      raise ValueError(
          f"A price must be finite and above 0, got {self.usd_per_hour}, and "
          f"its time_ms at least 0, got {self.time_ms}."
      )

  def __str__(self) -> str:
    slash = "/" * bool(self.zone)
    return f"{self.time_ms},price,{self.zone}{slash}{self.usd_per_hour!r}"


class ContradictionError(ValueError):
  """The event at `index` cannot follow its predecessors."""

  def __init__(self, index: int, message: str) -> None:
    super().__init__(message)
    self.index = index


@dataclasses.dataclass(frozen=True)
class Trace:
  """Events in order of time; simultaneous ones in the order of their effects.

  Attributes:
    name: Origin of the trace, for titles and messages.
    events: At least one. Only absent nodes join; only live ones leave or get
      notice, the latter once.
    duration_ms: End of the trace, not before the last event.
    notes: Assumptions of the reader, a sentence each.
    prices: Of the spot market, in order of time; may be empty. The first price
      of a zone holds from the start.
  """

  name: str
  events: tuple[Event, ...]
  duration_ms: int
  notes: tuple[str, ...] = ()
  prices: tuple[Price, ...] = ()

  def __post_init__(self) -> None:
    if not self.events:
      raise ValueError(f"Trace {self.name!r} is empty: it has no event.")
    _check_order(self.events)
    if self.duration_ms < self.events[-1].time_ms or self.duration_ms == 0:
      raise ValueError(
          f"Trace {self.name!r} must last some time, and not end before its "
          f"last event: duration_ms={self.duration_ms}, last event at "
          f"{self.events[-1].time_ms} ms."
      )
    if self.duration_ms > MAX_MS:
      raise ValueError(
          f"Trace {self.name!r} may last {MAX_MS} ms (ten years), got " f"{self.duration_ms}."
      )
    for early, late in itertools.pairwise(self.prices):
      if early.time_ms > late.time_ms:
        raise ValueError(
            f"Prices of trace {self.name!r} must be in order of time, got " f"{late} after {early}."
        )

  @property
  def zones(self) -> tuple[str, ...]:
    """Names of the zones, sorted; one empty name if zones are unknown."""
    return tuple(sorted({event.zone for event in self.events}))

  @functools.cached_property
  def num_nodes(self) -> int:
    """Maximum number of nodes alive at once."""
    return max(count for _, count in self.live_steps())

  def instants(self) -> Iterator[tuple[int, tuple[Event, ...]]]:
    """Yields each time with events, in ms, and these events."""
    by_time = operator.attrgetter("time_ms")
    for time_ms, events in itertools.groupby(self.events, by_time):
      yield time_ms, tuple(events)

  def lives(self) -> Iterator[tuple[Event, int | None]]:
    """Yields the arrival of each node, and when it is preempted; None: it lives to the end."""
    live: dict[str, Event] = {}
    for event in self.events:
      if event.kind == "add":
        live[event.node] = event
      elif event.kind == "remove":
        yield live.pop(event.node), event.time_ms
    for event in live.values():
      yield event, None

  def live_steps(self) -> tuple[Step, ...]:
    """Returns (time, live nodes from then on) at each time with events.

    Before the first no node is alive; the last lasts to `duration_ms`.
    """
    steps, live = [], 0
    for time_ms, events in self.instants():
      for event in events:
        live += (event.kind == "add") - (event.kind == "remove")
      steps.append((time_ms, live))
    return tuple(steps)


def _check_order(events: Sequence[Event]) -> None:
  live, warned, now_ms = set(), set(), 0
  for index, event in enumerate(events):
    node, problem = event.node, None
    if event.time_ms < now_ms:
      problem = f"events must be in order of time, got {event.time_ms} after {now_ms}"
    elif event.kind == "add":
      if node in live:
        problem = f"node {node!r} is added twice"
      live.add(node)
    elif node not in live:
      verb = "removed" if event.kind == "remove" else "given notice"
      problem = f"node {node!r} is {verb}, but it is not there"
    elif event.kind == "notice":
      if node in warned:
        problem = f"node {node!r} is given notice twice"
      warned.add(node)
    else:
      live.remove(node)
      warned.discard(node)
    if problem:
      raise ContradictionError(index, f"{problem}.")
    now_ms = event.time_ms


def summarize(trace: Trace) -> dict[str, float]:
  """Returns the figures of a trace by the names shown to users.

  Means are over the whole length, least and most from the first instant on.
  """
  hours = trace.duration_ms / MS_PER_HOUR
  live = [count for _, count in trace.live_steps()]
  alive_ms = sum(n * (end - start) for start, end, n in live_spans(trace))
  mean_nodes = alive_ms / trace.duration_ms
  lives_ms = [end_ms - start.time_ms for start, end_ms in trace.lives() if end_ms is not None]
  lifetimes = [ms / MS_PER_HOUR for ms in lives_ms]
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


def count_bulks(trace: Trace) -> collections.Counter[int]:
  """Returns the number of instants by the number of nodes that they remove."""
  lost = (sum(e.kind == "remove" for e in events) for _, events in trace.instants())
  return collections.Counter(filter(None, lost))


def live_spans(trace: Trace) -> Iterator[tuple[int, int, int]]:
  """Yields start and end in ms, and live nodes, from the first instant on."""
  steps = (*trace.live_steps(), (trace.duration_ms, 0))
  for (start, count), (end, _) in itertools.pairwise(steps):
    yield start, end, count


def mean_usd_per_hour(trace: Trace) -> float | None:
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


def _sum_bills(prices: Sequence[Price]) -> Callable[[int], float]:
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
