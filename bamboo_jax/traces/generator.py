"""Generates traces: preemptions in bulks, and nodes that return.

`generate_trace`: each live node is preempted at a rate, its hazard. At an instant
a zone loses a number of nodes drawn from the distribution of bulk sizes, and
sometimes a second zone does; instants are rarer in proportion, so that the hazard
is as requested. A lost node is replaced by a new one after an exponential delay.
In recorded traces bulks are common, and few instants affect several zones: 7 of
128 on EC2, 12 of 328 on GCP (Bamboo, NSDI'23).

`resample`: blocks of a recorded trace, drawn at random, one after the other. That
keeps what rates lose: bursts, nodes that return together, zones hit at once.
"""

import collections
from collections.abc import Sequence, Sized
import functools
import heapq
import itertools
import math
import operator
import random

from bamboo_jax import config as config_lib
from bamboo_jax.traces import trace as trace_lib

_MS_PER_HOUR = trace_lib.MS_PER_HOUR


def generate_trace(
    parameters: config_lib.TraceSection, *, seed: int, name: str = "generated"
) -> trace_lib.Trace:
  """Returns a trace, a function of parameters and seed.

  At most `nodes_per_zone` nodes of a zone are alive. Zones are "zone0" and on; a single
  zone has no name. Raises `ValueError` for more than a trace may have.
  """
  if seed < 0:  # Python would ignore its sign.
    raise ValueError(f"seed must be at least 0, got {seed}.")
  for option, value, most in (
      ("hours", parameters.hours, trace_lib.MAX_MS / _MS_PER_HOUR),
      ("nodes_per_zone", max(parameters.nodes_per_zone), trace_lib.MAX_LIVE),
  ):
    if value > most:
      raise ValueError(f"config.study.trace.{option} must be up to {most:g}, got {value}.")
  events = _draw_events(parameters, random.Random(seed))
  # A notice was appended with its preemption, at an earlier time.
  events.sort(key=operator.attrgetter("time_ms"))
  return trace_lib.Trace(
      name,
      tuple(events),
      duration_ms=math.ceil(parameters.hours * _MS_PER_HOUR),
      notes=(f"generated with seed {seed}",),
  )


def resample(
    recorded: trace_lib.Trace, *, hours: float, block_hours: float, seed: int, name: str
) -> trace_lib.Trace:
  """Returns a trace of random blocks of a recorded one, without its notices.

  At each instant a zone loses and gets as many nodes as in the block, up to those
  that it has, and to the most that it had in the recording; which nodes it loses is
  random. As a block begins, it gets those that it had there and lacks.

  Raises `ValueError` if a length or the seed does not fit.
  """
  block_ms, end_ms = round(block_hours * _MS_PER_HOUR), round(hours * _MS_PER_HOUR)
  if not 0 < block_ms <= recorded.duration_ms:
    most = recorded.duration_ms / _MS_PER_HOUR
    raise ValueError(f"block_hours must be above 0, up to {most:g} (the trace), got {block_hours}.")
  if not 0 < end_ms <= trace_lib.MAX_MS or seed < 0:
    most = trace_lib.MAX_MS / _MS_PER_HOUR
    raise ValueError(
        f"hours must be above 0, up to {most:g}, and seed at least 0, got {hours} and {seed}."
    )
  draw, instants = random.Random(seed), list(recorded.instants())
  names = {zone: itertools.count(1) for zone in recorded.zones}
  live: dict[str, list[str]] = {zone: [] for zone in names}
  # Live nodes of each zone after each instant, and the most of them.
  levels: list[collections.Counter[str]] = [collections.Counter()]
  for _, of_instant in instants:
    levels.append(levels[-1].copy())
    for event in of_instant:
      levels[-1][event.zone] += (event.kind == "add") - (event.kind == "remove")
  most = {zone: max(level[zone] for level in levels) for zone in names}
  events: list[trace_lib.Event] = []

  def add(at_ms: int, zone: str, number: int) -> None:
    for _ in range(min(number, most[zone] - len(live[zone]))):
      live[zone].append(f"{zone}/{next(names[zone])}" if zone else f"node{next(names[zone])}")
      events.append(trace_lib.Event(at_ms, "add", live[zone][-1]))

  for start_ms in range(0, end_ms, block_ms):
    begin_ms = draw.randint(0, recorded.duration_ms - block_ms)
    num_before = sum(time_ms < begin_ms for time_ms, _ in instants)
    for zone in names:  # Nodes whose return fell between two blocks come now.
      level = levels[num_before if start_ms else max(1, num_before)]
      add(start_ms, zone, level[zone] - len(live[zone]))
    for time_ms, of_instant in instants[max(1, num_before) :]:
      at_ms = start_ms + time_ms - begin_ms
      if at_ms >= min(end_ms, start_ms + block_ms):
        break
      changes = collections.Counter((event.zone, event.kind) for event in of_instant)
      for zone, here in live.items():
        lost = draw.sample(here, min(len(here), changes[zone, "remove"]))
        events.extend(trace_lib.Event(at_ms, "remove", node) for node in lost)
        gone = set(lost)
        here[:] = [node for node in here if node not in gone]
        add(at_ms, zone, changes[zone, "add"])
  note = f"blocks of {block_hours:g} h of {recorded.name}, drawn with seed {seed}"
  return trace_lib.Trace(name, tuple(events), duration_ms=end_ms, notes=(note,))


def _draw_events(parameters: config_lib.TraceSection, draw: random.Random) -> list[trace_lib.Event]:
  """Returns the events, in order of time except for notices."""
  end_ms = parameters.hours * _MS_PER_HOUR
  hazard_per_ms = parameters.hazard_per_node_hour / _MS_PER_HOUR
  sizes, weights = zip(*parameters.bulk_sizes, strict=True)
  mean_loss = functools.cache(lambda *live: _mean_loss(live, parameters))
  zones = range(len(parameters.nodes_per_zone))
  numbers = [itertools.count(1) for _ in zones]
  live: list[dict[str, float]] = [{} for _ in zones]  # Starts of nodes, in ms, by zone.
  arrivals: list[tuple[float, int]] = []  # Heap of ms and zones.
  events: list[trace_lib.Event] = []

  def note(kind: str, node: str, at_ms: float) -> None:
    events.append(trace_lib.Event(math.ceil(at_ms), kind, node))

  def add(zone: int, now_ms: float) -> None:
    node = f"zone{zone}/{next(numbers[zone])}" if len(zones) > 1 else f"node{next(numbers[zone])}"
    live[zone][node] = now_ms
    note("add", node, now_ms)

  def remove(zone: int, node: str, now_ms: float) -> None:
    came_ms = live[zone].pop(node)
    if notice_ms := 1000 * parameters.notice_secs:
      note("notice", node, max(came_ms, now_ms - notice_ms))
    note("remove", node, now_ms)
    delay_ms = 1000 * parameters.reacquire_secs
    if delay_ms < math.inf:
      heapq.heappush(arrivals, (now_ms + delay_ms * draw.expovariate(1.0), zone))

  def preempt(now_ms: float) -> None:
    """Runs one instant: a zone loses nodes, and perhaps another one does."""
    first = _draw_zone(draw, live)
    is_more = draw.random() < parameters.zone_correlation
    for zone in (first, _draw_zone(draw, live, but=first) if is_more else None):
      if zone is not None:
        [size] = draw.choices(sizes, weights)
        for node in draw.sample(list(live[zone]), min(size, len(live[zone]))):
          remove(zone, node, now_ms)

  for zone, num_nodes in enumerate(parameters.nodes_per_zone):
    for _ in range(num_nodes):
      add(zone, 0.0)
  now_ms = 0.0
  patience = draw.expovariate(1.0)  # Exhausted at the next instant.
  while now_ms < end_ms:
    until_ms = min(end_ms, arrivals[0][0]) if arrivals else end_ms
    counts = [*map(len, live)]
    # The rate of instants that gives each node its hazard.
    rate = hazard_per_ms * sum(counts) / mean_loss(*counts) if any(counts) else 0.0
    used = rate * (until_ms - now_ms)
    if used > patience:
      now_ms += patience / rate
      patience = draw.expovariate(1.0)
      preempt(now_ms)
      continue
    patience -= used
    now_ms = until_ms
    if arrivals and arrivals[0][0] <= now_ms < end_ms:
      add(heapq.heappop(arrivals)[1], now_ms)
  return events


def _draw_zone(draw: random.Random, live: Sequence[Sized], but: int | None = None) -> int | None:
  """Draws a zone in proportion to its live nodes; None if there is none."""
  counts = [0 if zone == but else len(nodes) for zone, nodes in enumerate(live)]
  return draw.choices(range(len(counts)), counts)[0] if any(counts) else None


def _mean_loss(live: Sequence[int], parameters: config_lib.TraceSection) -> float:
  """Returns the mean number of nodes that an instant removes from `live`."""
  weights = sum(weight for _, weight in parameters.bulk_sizes)
  losses = [
      sum(weight * min(size, n) for size, weight in parameters.bulk_sizes) / weights for n in live
  ]
  total, everywhere = sum(live), sum(map(operator.mul, live, losses))
  mean = 0.0
  for n, loss in zip(live, losses, strict=True):
    others = total - n
    second = (everywhere - n * loss) / others if others else 0.0
    mean += n / total * (loss + parameters.zone_correlation * second)
  return mean
