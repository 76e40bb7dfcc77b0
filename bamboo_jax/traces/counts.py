"""Traces recorded as numbers of live nodes, which name no nodes.

The nodes are inferred: a drop takes nodes at random, by a seed, and a node that
comes is always new. The trace says so in its notes. Numbers come as samples
(see `samples`), or as JSON, one for each tick, such as `{"metadata":
{"gap_seconds": 300}, "data": [4, 4, 3]}`; `data` may also be an object with a
list for each zone, and so may `prices`, dollars an hour of a node.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
import operator
import random
from typing import Any

from bamboo_jax import base
from bamboo_jax.traces import trace as trace_lib

# What the numbers of a JSON file are: live nodes; or, as simulators of one node
# have it, how many nodes are preempted at that time.
MEANINGS = ("counts", "preempted")
MAX_NODES = 2_000_000


@dataclasses.dataclass(frozen=True)
class Counts:
  """Live nodes over time, before nodes are inferred.

  Attributes:
    steps: For each zone, times in ms, and the live nodes from then on.
    start_hour: Hour of the day at which they start.
    notes: Assumptions of the reader.
  """

  steps: Mapping[str, Sequence[trace_lib.Step]]
  duration_ms: int
  start_hour: float = 0.0
  notes: tuple[str, ...] = ()
  prices: tuple[trace_lib.Price, ...] = ()


def infer_nodes(counts: Counts, *, name: str, seed: int = 0) -> trace_lib.Trace:
  """Returns a trace with these numbers of live nodes; drops are random.

  Raises `ValueError` if no node is ever alive, or it lasts no time.
  """
  _check_size(counts, name)
  events = []
  for zone, steps in counts.steps.items():
    draw = random.Random(f"{seed}/{zone}")
    prefix = f"{zone}/" if zone else "node"
    live, names = [], (f"{prefix}{i}" for i in itertools.count(1))
    for time_ms, count in steps:
      lost = draw.sample(live, max(0, len(live) - count))
      events += [trace_lib.Event(time_ms, "remove", node) for node in lost]
      live = [node for node in live if node not in set(lost)]
      new = list(itertools.islice(names, count - len(live)))
      events += [trace_lib.Event(time_ms, "add", node) for node in new]
      live += new
  events.sort(key=operator.attrgetter("time_ms"))  # Zones stay in order.
  note = f"the file names no nodes: a drop takes random ones (seed {seed})"
  return trace_lib.Trace(
      name,
      tuple(events),
      duration_ms=counts.duration_ms,
      start_hour=counts.start_hour,
      notes=(*counts.notes, note),
      prices=counts.prices,
  )


def parse_counts(
    lines: Sequence[tuple[int, str]], *, source: str, zone: str = ""
) -> Counts:
  """Returns the live nodes of lines; a `ValueError` names the line."""
  steps: dict[int, int] = {}
  for number, line in lines:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 2 or not all(c.isascii() and c.isdigit() for c in cells):
      raise ValueError(
          f"{source}, line {number}: a line is milliseconds,count, both whole "
          f"numbers from 0, got {line!r:.80}."
      )
    time_ms, count = map(int, cells)
    if steps and time_ms < next(reversed(steps)):
      raise ValueError(
          f"{source}, line {number}: lines must be in order of time, got "
          f"{time_ms} after {next(reversed(steps))}."
      )
    steps[time_ms] = count
  return Counts({zone: list(steps.items())}, duration_ms=next(reversed(steps)))


def _check_size(counts: Counts, name: str) -> None:
  num_nodes = 0
  for steps in counts.steps.values():
    live = [0, *(count for _, count in steps)]
    if max(live) > trace_lib.MAX_LIVE:
      raise ValueError(
          f"{name}: at most {trace_lib.MAX_LIVE} nodes may be alive in a zone, "
          f"got {max(live)}."
      )
    num_nodes += sum(max(0, b - a) for a, b in itertools.pairwise(live))
  if num_nodes > MAX_NODES:
    raise ValueError(
        f"{name}: a trace may have {MAX_NODES} nodes, got {num_nodes}."
    )


def parse_json(
    text: str, *, source: str, zone: str = "", meaning: str = "counts"
) -> Counts:
  """Returns the live nodes of a JSON file; `ValueError` names line or key.

  `zone` (maybe empty) is for nodes in a plain list. The cluster of "preempted"
  nodes, a `meaning`, is as large as most of them at once, at least one.
  """
  if meaning not in MEANINGS:
    raise ValueError(base.suggest(meaning, MEANINGS, what="json_data"))
  try:
    content = json.loads(text)
  except json.JSONDecodeError as error:
    raise ValueError(
        f"{source}, line {error.lineno}: not JSON: {error.msg}."
    ) from None
  metadata = content.get("metadata")
  gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
  if not _is_number(gap) or gap == 0:
    raise ValueError(
        f"{source}: metadata.gap_seconds must be a number above 0, got {gap!r}."
    )
  data = content.get("data")
  by_zone = data if isinstance(data, dict) else {zone: data}
  lengths, steps = {}, {}
  for name, values in by_zone.items():
    where = f"data.{name}" if by_zone is data else "data"
    live = _live_nodes(values, meaning=meaning, where=f"{source}: {where}")
    steps[name] = [(round(1000 * gap * i), n) for i, n in enumerate(live)]
    lengths[where] = len(live)
  if len(set(lengths.values())) != 1:
    raise ValueError(
        f"{source}: data must have as many ticks for each zone, got {lengths}."
    )
  length = next(iter(lengths.values()))
  return Counts(
      steps,
      duration_ms=round(1000 * gap * length),
      notes=(f"its numbers are taken to be {meaning} (json_data)",),
      prices=tuple(
          sorted(
              _prices(content, zone, gap=gap, length=length, path=source),
              key=operator.attrgetter("time_ms"),
          )
      ),
  )


def _prices(
    content: Mapping[str, Any], zone: str, *, gap: float, length: int, path: str
) -> Iterator[trace_lib.Price]:
  prices = content.get("prices", {})
  by_zone = prices if isinstance(prices, dict) else {zone: prices}
  for name, values in by_zone.items():
    where = f"{path}: prices.{name}" if by_zone is prices else f"{path}: prices"
    if not isinstance(values, list) or len(values) != length:
      raise ValueError(
          f"{where} must be a list of as many numbers as data has, {length}, "
          f"got {values!r:.40}."
      )
    before = None
    for i, usd in enumerate(values):
      if not _is_number(usd) or usd == 0:
        raise ValueError(
            f"{where}[{i}] must be a number above 0, got {usd!r:.40}."
        )
      if usd != before:
        yield trace_lib.Price(round(1000 * gap * i), usd, name)
      before = usd


def _live_nodes(values: Any, *, meaning: str, where: str) -> list[int]:
  if not isinstance(values, list) or not values:
    raise ValueError(
        f"{where} must be a list of a number for each tick, got {values!r:.40}."
    )
  for i, value in enumerate(values):
    if not _is_number(value) or not float(value).is_integer():
      raise ValueError(
          f"{where}[{i}] must be a whole number from 0, got {value!r:.40}."
      )
  counts = list(map(int, values))
  if meaning == "counts":
    return counts
  total = max(1, *counts)
  return [total - count for count in counts]


def _is_number(value: Any) -> bool:
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  return is_number and 0 <= value < float("inf")
