"""Finds the parameters with which the generator imitates a trace.

All are simple estimates: preemptions per node-hour, observed bulk sizes, the
share of instants that affect a second zone, the missing time per joining node
(maximum likelihood of an exponential delay). Nodes missing at the start count
as lost.
"""

import collections
import math
import statistics
from typing import NamedTuple

from bamboo_jax.traces import (
    parameters as trace_parameters,
    summary as trace_summary,
    trace as trace_lib,
)

_MS_PER_HOUR = trace_lib.MS_PER_HOUR

# In less than two days each hour of the day occurs once, so its hazard is
# chance.
_MIN_PROFILE_HOURS = 48


def fit_parameters(trace: trace_lib.Trace) -> trace_parameters.Parameters:
  """Returns the parameters that fit `trace`.

  The hazard depends on the hour of the day only if the trace lasts two days.
  """
  losses = list(trace_summary.zone_losses(trace))
  bulks = collections.Counter(n for zones in losses for n in zones.values())
  num_zone_instants = sum(len(zones) > 1 for zones in losses)
  nodes_per_zone = _nodes_per_zone(trace)
  hazard = _hazard(trace)
  return trace_parameters.Parameters(
      nodes_per_zone=nodes_per_zone,
      hours=trace.duration_ms / _MS_PER_HOUR,
      hazard_per_node_hour=hazard.per_node_hour,
      bulk_sizes=tuple(sorted(bulks.items())) or ((1, 1),),
      zone_correlation=num_zone_instants / max(1, len(losses)),
      hour_profile=hazard.hour_profile,
      start_hour=trace.start_hour,
      reacquire_secs=_reacquire_secs(trace, sum(nodes_per_zone)),
      notice_secs=_notice_secs(trace),
  )


def _nodes_per_zone(trace: trace_lib.Trace) -> tuple[int, ...]:
  live: collections.Counter[str] = collections.Counter()
  most = dict.fromkeys(trace.zones, 0)
  for event in trace.events:
    live[event.zone] += (event.kind == "add") - (event.kind == "remove")
    most[event.zone] = max(most[event.zone], live[event.zone])
  return tuple(most.values())


class _Hazard(NamedTuple):
  per_node_hour: float
  hour_profile: tuple[float, ...]


def _hazard(trace: trace_lib.Trace) -> _Hazard:
  summary = trace_summary.summarize(trace)
  hazard = summary.preempted_per_node_hour
  if summary.hours < _MIN_PROFILE_HOURS or not hazard:
    return _Hazard(hazard, (1.0,) * 24)
  node_ms, losses = [0] * 24, [0] * 24
  first_ms = round(trace.start_hour * _MS_PER_HOUR)  # Since midnight.
  for start, end, live in trace_summary.live_spans(trace):
    at = start + first_ms
    while at < end + first_ms:
      hour = at // _MS_PER_HOUR
      until = min(end + first_ms, (hour + 1) * _MS_PER_HOUR)
      node_ms[hour % 24] += live * (until - at)
      at = until
  for event in trace.events:
    hour = (event.time_ms + first_ms) // _MS_PER_HOUR
    losses[hour % 24] += event.kind == "remove"
  by_hour = [
      _MS_PER_HOUR * lost / alive if alive else hazard
      for lost, alive in zip(losses, node_ms, strict=True)
  ]
  mean = sum(by_hour) / len(by_hour)
  return _Hazard(mean, tuple(hazard / mean for hazard in by_hour))


def _reacquire_secs(trace: trace_lib.Trace, num_nodes: int) -> float:
  """Returns the missing time per joining node, in seconds."""
  spans = trace_summary.live_spans(trace)
  missing_ms = sum((num_nodes - n) * (end - start) for start, end, n in spans)
  first_ms = trace.events[0].time_ms
  added = [e for e in trace.events if e.kind == "add"]
  num_added = sum(event.time_ms > first_ms for event in added)
  return missing_ms / num_added / 1000 if num_added else math.inf


def _notice_secs(trace: trace_lib.Trace) -> float:
  """Returns the median time from notice to preemption; 0 without notices."""
  warned_ms, gaps_ms = {}, []
  for event in trace.events:
    if event.kind == "notice":
      warned_ms[event.node] = event.time_ms
    elif event.kind == "remove" and event.node in warned_ms:
      gaps_ms.append(event.time_ms - warned_ms.pop(event.node))
  return statistics.median(gaps_ms) / 1000 if gaps_ms else 0.0
