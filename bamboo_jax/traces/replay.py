"""Start nodes and timed events, to replay a trace on real nodes."""

import dataclasses

from bamboo_jax.traces import scale, trace as trace_lib


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


def plan_replay(
    trace: trace_lib.Trace, *, time_scale: float, num_nodes: int | None = None
) -> Replay:
  """Returns the nodes to start with and the events to replay.

  `time_scale` is the speed-up over the recording; `num_nodes` limits live nodes
  (see `scale.scale_nodes`), None keeps those of the trace. Raises `ValueError`
  if no node remains.
  """
  if not 0 < time_scale < float("inf"):
    raise ValueError(f"time_scale must be above 0, got {time_scale}.")
  if num_nodes is not None:
    trace = scale.scale_nodes(trace, num_nodes)
  (start_ms, first_events), *_ = trace.instants()
  first: dict[str, None] = {}
  for event in first_events:
    if event.kind == "add":
      first[event.node] = None
    elif event.kind == "remove":
      del first[event.node]
  events = tuple(
      dataclasses.replace(event, time_ms=round((event.time_ms - start_ms) / time_scale))
      for event in trace.events[len(first_events) :]
  )
  duration_ms = round((trace.duration_ms - start_ms) / time_scale)
  return Replay(tuple(first), events, duration_ms)
