"""Traces recorded as numbers of live nodes, without their names.

The nodes are inferred: a drop removes random nodes, by a seed, and a joining
node is always new. The notes of the trace say so. Numbers are samples (see
`samples`), or JSON, one for each tick, such as `{"metadata": {"gap_seconds":
300}, "data": [4, 4, 3]}`; `data` may also be an object with a list for each
zone, and so may `prices`, dollars per node-hour.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import itertools
import json
import operator
import random
from typing import Any, TypeGuard

from bamboo_jax import base
from bamboo_jax.traces import trace as trace_lib

# Meanings of the numbers of a JSON file: live nodes; or, for simulators of one
# node, the number of nodes preempted at that time.
MEANINGS = ("counts", "preempted")
MAX_NODES = 2_000_000


def infer_nodes(
    steps: Mapping[str, Sequence[trace_lib.Step]],
    *,
    seed: int,
    notes: Sequence[str] = (),
    **trace: Any,
) -> trace_lib.Trace:
  """Returns a trace with these numbers of live nodes; lost nodes are random.

  Args:
    steps: For each zone, times in ms, and the live nodes from then on.
    notes: Assumptions of the reader.
    **trace: Fields of the trace other than `events`.

  Raises:
    ValueError: No node is ever alive, or the trace has no duration.
  """
  _check_size(steps.values(), trace["name"])
  events = []
  for zone, zone_steps in steps.items():
    draw = random.Random(f"{seed}/{zone}")
    prefix = f"{zone}/" if zone else "node"
    live: list[str] = []
    names = (f"{prefix}{i}" for i in itertools.count(1))
    for time_ms, count in zone_steps:
      lost = draw.sample(live, max(0, len(live) - count))
      events += [trace_lib.Event(time_ms, "remove", node) for node in lost]
      gone = set(lost)
      live = [node for node in live if node not in gone]
      new = list(itertools.islice(names, count - len(live)))
      events += [trace_lib.Event(time_ms, "add", node) for node in new]
      live += new
  events.sort(key=operator.attrgetter("time_ms"))  # Keeps the order of zones.
  note = f"the file names no nodes: a drop takes random ones (seed {seed})"
  return trace_lib.Trace(events=tuple(events), notes=(*notes, note), **trace)


def _check_size(steps: Iterable[Sequence[trace_lib.Step]], name: str) -> None:
  num_nodes = 0
  for zone_steps in steps:
    live = [0, *(count for _, count in zone_steps)]
    if max(live) > trace_lib.MAX_LIVE:
      raise ValueError(
          f"{name}: at most {trace_lib.MAX_LIVE} nodes may be alive in a zone, " f"got {max(live)}."
      )
    num_nodes += sum(max(0, b - a) for a, b in itertools.pairwise(live))
  if num_nodes > MAX_NODES:
    raise ValueError(f"{name}: a trace may have {MAX_NODES} nodes, got {num_nodes}.")


def parse_counts(
    lines: Sequence[tuple[int, str]], *, source: str, zone: str, seed: int
) -> trace_lib.Trace:
  """Returns the trace of numbered lines with counts of live nodes.

  A `ValueError` names the line.
  """
  steps: dict[int, int] = {}
  for number, line in lines:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 2 or not all(c.isascii() and c.isdigit() for c in cells):
      raise ValueError(
          f"{source}, line {number}: a line is milliseconds,count, two "
          f"non-negative integers, got {line!r:.80}."
      )
    time_ms, count = map(int, cells)
    if steps and time_ms < next(reversed(steps)):
      raise ValueError(
          f"{source}, line {number}: lines must be in order of time, got "
          f"{time_ms} after {next(reversed(steps))}."
      )
    steps[time_ms] = count
  return infer_nodes(
      {zone: list(steps.items())}, seed=seed, name=source, duration_ms=next(reversed(steps))
  )


def parse_json(text: str, *, source: str, zone: str, seed: int, meaning: str) -> trace_lib.Trace:
  """Returns the trace of a JSON file; `ValueError` names line or key.

  `zone`, which may be empty, is the zone of a plain list. If the `meaning` is
  "preempted", numbers are losses; the cluster then has as many nodes as the
  largest simultaneous loss, at least one.
  """
  if meaning not in MEANINGS:
    raise ValueError(base.suggest(meaning, MEANINGS, what="json_data"))
  try:
    content = json.loads(text)
  except json.JSONDecodeError as error:
    raise ValueError(f"{source}, line {error.lineno}: not JSON: {error.msg}.") from None
  metadata = content.get("metadata")
  gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
  if not _is_number(gap) or gap == 0:
    raise ValueError(f"{source}: metadata.gap_seconds must be a number above 0, got {gap!r}.")
  data = _read_lists(
      content.get("data"),
      zone,
      where=f"{source}: data",
      is_right=lambda n: _is_number(n) and float(n).is_integer(),
      allowed="a non-negative integer",
  )
  prices = _read_lists(
      content.get("prices", {}),
      zone,
      where=f"{source}: prices",
      is_right=lambda usd: _is_number(usd) and usd > 0,
      allowed="a number above 0",
  )
  num_ticks = _find_num_ticks(source, data=data, prices=prices)
  tick_ms = lambda tick: round(1000 * gap * tick)
  steps = {}
  for name, values in data.items():
    live = list(map(int, values))
    if meaning == "preempted":
      total = max(1, *live)
      live = [total - num_preempted for num_preempted in live]
    steps[name] = [(tick_ms(i), count) for i, count in enumerate(live)]
  changes = [
      trace_lib.Price(tick_ms(i), usd, name)
      for name, values in prices.items()
      for i, usd in enumerate(values)
      if not i or usd != values[i - 1]
  ]
  return infer_nodes(
      steps,
      seed=seed,
      notes=(f"its numbers are taken to be {meaning} (json_data)",),
      name=source,
      duration_ms=tick_ms(num_ticks),
      prices=tuple(sorted(changes, key=operator.attrgetter("time_ms"))),
  )


def _read_lists(
    content: Any, zone: str, *, where: str, is_right: Callable[[Any], bool], allowed: str
) -> Mapping[str, list[Any]]:
  """Returns the list of each zone; a plain list is that of `zone`."""
  by_zone = content if isinstance(content, dict) else {zone: content}
  for name, values in by_zone.items():
    at = f"{where}.{name}" if by_zone is content else where
    if not isinstance(values, list) or not values:
      raise ValueError(f"{at} must be a list of a number for each tick, got {values!r:.40}.")
    for i, value in enumerate(values):
      if not is_right(value):
        raise ValueError(f"{at}[{i}] must be {allowed}, got {value!r:.40}.")
  return by_zone


def _find_num_ticks(source: str, **lists: Mapping[str, list[Any]]) -> int:
  """Returns the length that the list of each zone has in all `lists`."""
  lengths = {
      f"{key}.{name}".rstrip("."): len(values)
      for key, by_zone in lists.items()
      for name, values in by_zone.items()
  }
  if len({*lengths.values()}) != 1:
    raise ValueError(
        f"{source}: data and prices must have as many ticks for each zone, got " f"{lengths}."
    )
  return next(iter(lengths.values()))


def _is_number(value: Any) -> TypeGuard[float]:
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  return is_number and 0 <= value < float("inf")
