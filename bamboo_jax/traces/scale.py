"""Fits a trace to another cluster: more or fewer nodes, other speed, zones; to replay it there."""

import collections
from collections.abc import Iterator, Sequence
import dataclasses
import heapq
import itertools
import operator

from bamboo_jax.traces import trace as trace_lib

Trace = trace_lib.Trace


def scale(trace: Trace, *, num_nodes: int | None, time_scale: float) -> Trace:
  """Returns the trace with times multiplied by `time_scale`, in whole ms.

  `num_nodes` is for `scale_nodes`, None keeps all. Raises `ValueError` if no
  event remains.
  """
  if not 0 < time_scale < float("inf"):
    raise ValueError(f"time_scale must be above 0, got {time_scale}.")
  if num_nodes is not None:
    trace = scale_nodes(trace, num_nodes)
  return dataclasses.replace(
      trace,
      events=tuple(
          dataclasses.replace(event, time_ms=round(event.time_ms * time_scale))
          for event in trace.events
      ),
      prices=tuple(
          dataclasses.replace(price, time_ms=round(price.time_ms * time_scale))
          for price in trace.prices
      ),
      duration_ms=round(trace.duration_ms * time_scale),
  )


def scale_nodes(trace: Trace, num_nodes: int) -> Trace:
  """Returns the trace for a cluster of at most `num_nodes` live nodes.

  A live node occupies the lowest free place of its zone. Of all places,
  `num_nodes` are picked evenly, some several times if there are too few; a node
  appears once per pick of its place. So lifetimes and zones are unchanged, and
  up to rounding the share of live nodes and the share lost at an instant.
  Raises `ValueError` if no node remains.
  """
  if not 1 <= num_nodes <= trace_lib.MAX_LIVE:
    raise ValueError(f"num_nodes must be from 1 to {trace_lib.MAX_LIVE}, got {num_nodes}.")
  places = _places(trace)
  order = {place: i for i, place in enumerate(sorted(set(places)))}
  num_picks = collections.Counter(
      (2 * i + 1) * len(order) // (2 * num_nodes) for i in range(num_nodes)
  )
  mark = "."  # Longer than in any name: copies may have been copied before.
  while any(mark in event.node for event in trace.events):
    mark += "."
  events = tuple(
      dataclasses.replace(event, node=event.node + (f"{mark}{copy}" * (copy > 0)))
      for event, place in zip(trace.events, places, strict=True)
      for copy in range(num_picks[order[place]])
  )
  return dataclasses.replace(trace, events=events)


def _places(trace: Trace) -> list[tuple[str, int]]:
  """Returns the zone and the number of the place of each event's node."""
  places, by_node = [], {}
  free: dict[str, list[int]] = collections.defaultdict(list)  # Heaps by zone.
  unused: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)
  for event in trace.events:
    zone, node = event.zone, event.node
    if event.kind == "add":
      heap = free[zone]
      by_node[node] = heapq.heappop(heap) if heap else next(unused[zone])
    places.append((zone, by_node[node]))
    if event.kind == "remove":
      heapq.heappush(free[zone], by_node[node])
  return places


def merge(traces: Sequence[Trace]) -> Trace:
  """Returns one trace of all nodes; it ends with the shortest trace.

  Prices of a trace apply to its own zones. Raises `ValueError` if two traces
  name the same node, or have other prices of the same zone.
  """
  prices: dict[str, list[trace_lib.Price]] = {}
  for trace in traces:
    for zone, own in _zoned(trace).items():
      if prices.setdefault(zone, own) != own:
        names = " and ".join(trace.name for trace in traces)
        raise ValueError(
            f"{names} have different prices of zone {zone!r}: name nodes ZONE/NODE in each."
        )
  duration_ms = min(trace.duration_ms for trace in traces)
  by_time = operator.attrgetter("time_ms")
  events = heapq.merge(*(trace.events for trace in traces), key=by_time)
  notes = [note for trace in traces for note in trace.notes]
  if any(trace.duration_ms > duration_ms for trace in traces):
    notes.append("it ends with the shortest of the traces it is merged from")
  return Trace(
      " + ".join(trace.name for trace in traces),
      tuple(event for event in events if event.time_ms <= duration_ms),
      duration_ms=duration_ms,
      notes=tuple(dict.fromkeys(notes)),
      prices=tuple(heapq.merge(*prices.values(), key=by_time)),
  )


def _zoned(trace: Trace) -> dict[str, list[trace_lib.Price]]:
  """Returns the prices of each zone of the trace that has some."""
  named = {price.zone for price in trace.prices}
  found = {
      zone: [
          dataclasses.replace(price, zone=zone)
          for price in trace.prices
          if price.zone == (zone if zone in named else "")
      ]
      for zone in trace.zones
  }
  return {zone: prices for zone, prices in found.items() if prices}


@dataclasses.dataclass(frozen=True)
class Replay:
  """A trace split into its `first` nodes and later events, in replay ms."""

  first: tuple[str, ...]
  events: tuple[trace_lib.Event, ...]
  duration_ms: int

  @property
  def num_nodes(self) -> int:
    """Number of nodes over time; a node that returns counts again."""
    return len(self.first) + sum(event.kind == "add" for event in self.events)


def plan_replay(trace: Trace) -> Replay:
  """Returns the nodes to start with and the events to replay, from the first instant on."""
  (start_ms, first_events), *_ = trace.instants()
  first: dict[str, None] = {}
  for event in first_events:
    if event.kind == "add":
      first[event.node] = None
    elif event.kind == "remove":
      del first[event.node]
  events = tuple(
      dataclasses.replace(event, time_ms=event.time_ms - start_ms)
      for event in trace.events[len(first_events) :]
  )
  return Replay(tuple(first), events, trace.duration_ms - start_ms)
