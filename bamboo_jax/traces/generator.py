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
from collections.abc import Sequence
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
  events = _Generation(parameters, random.Random(seed)).run()
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
    raise ValueError(f"hours must be above 0 and seed at least 0, got {hours} and {seed}.")
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


class _Generation:

  def __init__(self, parameters: config_lib.TraceSection, draw: random.Random) -> None:
    self._parameters = parameters
    self._draw = draw
    num_zones = len(parameters.nodes_per_zone)
    self._prefixes = [f"zone{i}/" for i in range(num_zones)]
    if num_zones == 1:
      self._prefixes = ["node"]
    self._hazard_per_ms = parameters.hazard_per_node_hour / _MS_PER_HOUR
    self._num_added = [0 for _ in self._prefixes]
    # Starts of nodes, in ms, by zone.
    self._live: list[dict[str, float]] = [{} for _ in self._prefixes]
    self._arrivals: list[tuple[float, int]] = []  # Heap of ms and zones.
    self._mean_losses: dict[tuple[int, ...], float] = {}  # By live nodes.
    self._events: list[trace_lib.Event] = []

  def run(self) -> list[trace_lib.Event]:
    """Returns the events, in order of time except for notices."""
    parameters, draw = self._parameters, self._draw
    end_ms = parameters.hours * _MS_PER_HOUR
    for zone, num_nodes in enumerate(parameters.nodes_per_zone):
      for _ in range(num_nodes):
        self._add(zone, 0.0)
    now_ms = 0.0
    patience = draw.expovariate(1.0)  # Exhausted at the next instant.
    while now_ms < end_ms:
      until_ms = min(end_ms, self._arrivals[0][0]) if self._arrivals else end_ms
      rate = self._instants_per_ms()
      used = rate * (until_ms - now_ms)
      if used > patience:
        now_ms += patience / rate
        patience = draw.expovariate(1.0)
        self._preempt(now_ms)
        continue
      patience -= used
      now_ms = until_ms
      if self._arrivals and self._arrivals[0][0] <= now_ms < end_ms:
        self._add(heapq.heappop(self._arrivals)[1], now_ms)
    return self._events

  def _instants_per_ms(self) -> float:
    """Returns the rate of instants that gives each node its hazard."""
    live = tuple(map(len, self._live))
    if not any(live):
      return 0.0
    if live not in self._mean_losses:
      self._mean_losses[live] = _mean_loss(live, self._parameters)
    return self._hazard_per_ms * sum(live) / self._mean_losses[live]

  def _preempt(self, now_ms: float) -> None:
    """Runs one instant: a zone loses nodes, and perhaps another one does."""
    first = self._draw_zone(but=None)
    zones = [first]
    if self._draw.random() < self._parameters.zone_correlation:
      zones.append(self._draw_zone(but=first))
    sizes, weights = zip(*self._parameters.bulk_sizes, strict=True)
    for zone in zones:
      if zone is not None:
        [size] = self._draw.choices(sizes, weights)
        live = self._live[zone]
        for node in self._draw.sample(list(live), min(size, len(live))):
          self._remove(zone, node, now_ms)

  def _draw_zone(self, *, but: int | None) -> int | None:
    """Draws a zone in proportion to its live nodes; None if there is none."""
    live = [0 if zone == but else len(n) for zone, n in enumerate(self._live)]
    return self._draw.choices(range(len(live)), live)[0] if any(live) else None

  def _remove(self, zone: int, node: str, now_ms: float) -> None:
    came_ms = self._live[zone].pop(node)
    notice_ms = 1000 * self._parameters.notice_secs
    if notice_ms:
      self._note("notice", node, max(came_ms, now_ms - notice_ms))
    self._note("remove", node, now_ms)
    delay_ms = 1000 * self._parameters.reacquire_secs
    if delay_ms < math.inf:
      at_ms = now_ms + delay_ms * self._draw.expovariate(1.0)
      heapq.heappush(self._arrivals, (at_ms, zone))

  def _add(self, zone: int, now_ms: float) -> None:
    self._num_added[zone] += 1
    node = f"{self._prefixes[zone]}{self._num_added[zone]}"
    self._live[zone][node] = now_ms
    self._note("add", node, now_ms)

  def _note(self, kind: str, node: str, at_ms: float) -> None:
    self._events.append(trace_lib.Event(math.ceil(at_ms), kind, node))


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
