"""Traces: when the nodes of a cluster join, get notice, and leave.

A trace records, or imitates, how a provider preempts the nodes of a cluster;
the simulator predicts its cost, a cluster of processes replays it. Times are
whole milliseconds, so that the order of events never depends on rounding.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import itertools
import math
import operator
import re

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
