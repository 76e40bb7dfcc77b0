"""Reads and writes traces; the format is detected from the content.

  events   `milliseconds,add|remove|notice,node`, in order of time
  samples  `date, time, count`, in any order
  counts   `milliseconds,count`, in order of time; the last of a time counts
  lines of JSON  events of intervals (Parcae, NSDI'24), such as
      `[60000, "remove", {"nodes": ["node-3", "node-1"], "duration": 60000}]`
  JSON     counts at every tick, such as `{"metadata": {"gap_seconds": 300},
      "data": [4, 4, 3]}`; `data` may also have a list for each zone, and so may
      `prices`, dollars per node-hour

Between events, `milliseconds,price,dollars` gives the hourly price of a node
from then on, `milliseconds,price,zone/dollars` that of a zone's nodes. Lines
that begin with `#` are comments, but `# duration_ms=N` sets the end of the trace
(by default the last event).

Samples and counts name no nodes: a drop removes random ones, by a seed, and a
joining node is always new. The notes of the trace say so.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import datetime
import itertools
import json
import operator
import os
import random
import re
import statistics
import sys
from typing import Any, TypeGuard

from bamboo_jax.base import packaged
from bamboo_jax.traces import scale, trace as trace_lib

MAX_NODES = 2_000_000

_DURATION = re.compile(r"#\s*duration_ms\s*=\s*(.*)")
_COUNT = re.compile(r"(\d+)\s*,\s*(\d+)", re.ASCII)
_BY_TIME = operator.attrgetter("time_ms")
_MS = datetime.timedelta(milliseconds=1)
# A sample within this time of the previous line with the same count repeats its
# reading. A longer limit would merge equal counts of unsorted lines.
_REPEAT = datetime.timedelta(minutes=1)
_HOLE = 10  # A time between two samples of so many usual ones.


def read_traces(paths: Sequence[str | os.PathLike[str]], *, seed: int = 0) -> trace_lib.Trace:
  """Returns the trace in the files; several files are zones of one cluster.

  Nodes of counts are then named after their file: `us-east-1a/1` and on for
  `us-east-1a.json`. `seed` selects the removed nodes when a count drops. Raises
  `OSError`, or `ValueError` that names the line.
  """
  if not paths:
    raise ValueError("No trace given: name at least one file.")
  traces = []
  for path in map(packaged.find_file, paths):
    try:
      text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
      raise ValueError(f"{path} is not a trace: it is not text.") from None
    zone = path.stem if len(paths) > 1 else ""
    traces.append(parse_trace(text, source=str(path), zone=zone, seed=seed))
  try:
    return traces[0] if len(traces) == 1 else scale.merge(traces)
  except trace_lib.ContradictionError as error:
    names = " and ".join(trace.name for trace in traces)
    raise ValueError(f"Files of one cluster must name different nodes, {names}: {error}") from None


@dataclasses.dataclass
class _Reading:
  """A count of live nodes: what a recorder read from `start` to `end`."""

  line: int
  start: datetime.datetime
  end: datetime.datetime
  count: int


# The values of a line, and those of all lines with the number of each.
_Parser = Callable[[str], list[Any]]
_Numbered = Sequence[tuple[int, Any]]


def parse_trace(text: str, *, source: str, zone: str = "", seed: int = 0) -> trace_lib.Trace:
  """Returns the trace in `text`, in any of the formats.

  `source` names it, also in messages; `zone` is for nodes of files that name
  none. Raises `ValueError`, which names the line.
  """
  if text.lstrip().startswith("{"):
    return _parse_ticks(text, source=source, zone=zone, seed=seed)
  lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
  first = next(((n, line) for n, line in lines if not line.startswith("#")), None)
  if first is None:
    raise ValueError(f"{source} is empty: it has no event.")
  parse, found, duration_ms = _find_parser(*first, source=source), list[tuple[int, Any]](), 0
  for number, line in lines:
    try:
      if match := _DURATION.fullmatch(line):
        duration_ms = _parse_duration(match[1])
      elif not line.startswith("#"):
        found += [(number, value) for value in parse(line)]
    except ValueError as error:
      raise ValueError(f"{source}, line {number}: {error}") from None
  if parse in (_parse_count, _parse_sample):
    of_counts = parse is _parse_count
    steps = _order_counts(found, source) if of_counts else _order_samples(found, source)
    notes = [] if of_counts else _find_holes([at for _, (at, _) in found])
    duration_ms = duration_ms or steps[-1][0]
    return _infer_nodes({zone: steps}, notes, seed=seed, name=source, duration_ms=duration_ms)
  events = [(number, value) for number, value in found if isinstance(value, trace_lib.Event)]
  if not events:
    raise ValueError(f"{source} is empty: it has no event.")
  ends_ms = [value for _, value in found if isinstance(value, int)]
  duration_ms = duration_ms or max([*ends_ms, *(event.time_ms for _, event in events)])
  if not duration_ms:
    raise ValueError(f"{source} must last some time. A line `# duration_ms=...` says when it ends.")
  prices = tuple(value for _, value in found if isinstance(value, trace_lib.Price))
  try:
    return trace_lib.Trace(source, tuple(e for _, e in events), duration_ms, prices=prices)
  except trace_lib.ContradictionError as error:
    raise ValueError(f"{source}, line {events[error.index][0]}: {error}") from None


def _find_parser(number: int, line: str, *, source: str) -> _Parser:
  """Returns the parser of lines that look like `line`."""
  second = line.split(",")[1].strip() if "," in line else ""
  if line.startswith("["):
    return _parse_segment
  if _COUNT.fullmatch(line):
    return _parse_count
  if ":" in second:
    return _parse_sample
  if re.search("[a-z]", second, flags=re.IGNORECASE):
    return _parse_event
  raise ValueError(
      f"{source}, line {number}: not a trace. A line is "
      "milliseconds,add|remove|notice,node or milliseconds,count or date, "
      "time, count; or the file is JSON with metadata.gap_seconds and data, "
      f"or lines of JSON. Got {line!r:.80}."
  )


def _parse_duration(text: str) -> int:
  try:
    return int(text)
  except ValueError:
    raise ValueError(f"duration_ms must be a number, got {text!r}.") from None


def _parse_event(line: str) -> list[Any]:
  cells = [cell.strip() for cell in line.split(",")]
  if len(cells) != 3:
    raise ValueError(f"an event has 3 values, milliseconds,add|remove|notice,node, got {line!r}.")
  at, kind, value = cells
  if not re.fullmatch(r"\d+", at, flags=re.ASCII):
    raise ValueError(f"milliseconds must be a non-negative integer, got {at!r}.")
  if kind != "price":
    return [trace_lib.Event(int(at), kind, value)]
  zone, _, usd = value.rpartition("/")
  try:
    usd_per_hour = float(usd)
  except ValueError:
    raise ValueError(f"a price is dollars or zone/dollars, got {value!r}.") from None
  return [trace_lib.Price(int(at), usd_per_hour, zone)]


def _parse_segment(line: str) -> list[Any]:
  """Returns the events, and the end of their interval.

  Kinds other than "add" and "remove", such as "no-op", are intervals without an event.
  """
  try:
    value = json.loads(line)
  except json.JSONDecodeError as error:
    raise ValueError(f"not JSON: {error.msg}, got {line:.80}") from None
  is_time = lambda x: type(x) is int and x >= 0
  match value:
    case [at, str(kind), {"nodes": list(nodes), "duration": lasts}] if (
        is_time(at) and is_time(lasts) and all(isinstance(node, str) for node in nodes)
    ):
      named = nodes if kind in ("add", "remove") else []
      return [*(trace_lib.Event(at, kind, node) for node in named), at + lasts]
    case _:
      raise ValueError(
          'a line is [milliseconds, kind, {"nodes": [...], "duration": '
          f"milliseconds}}], got {line:.80}"
      )


def _parse_count(line: str) -> list[Any]:
  if not (match := _COUNT.fullmatch(line)):
    raise ValueError(f"a line is milliseconds,count, two non-negative integers, got {line!r:.80}.")
  return [(int(match[1]), int(match[2]))]


def _order_counts(found: _Numbered, source: str) -> list[trace_lib.Step]:
  """Returns the last count of each time; `ValueError` if times go back."""
  steps, last_ms = dict[int, int](), 0
  for number, (time_ms, count) in found:
    if time_ms < last_ms:
      raise ValueError(
          f"{source}, line {number}: lines must be in order of time, got {time_ms} after {last_ms}."
      )
    steps[time_ms], last_ms = count, time_ms
  return [*steps.items()]


def _parse_sample(line: str) -> list[Any]:
  cells = [cell.strip() for cell in line.split(",")]
  if len(cells) != 3:
    raise ValueError(f"a sample is date, time, count, got {line!r}.")
  date, time, count = cells
  try:
    at = datetime.datetime.combine(
        datetime.date.fromisoformat(date), datetime.time.fromisoformat(time)
    )
  except ValueError:
    raise ValueError(
        f"date and time must be as in 2021-12-10, 13:07:45, got {date + ', ' + time!r}."
    ) from None
  if at.tzinfo is not None:
    raise ValueError(f"time must be without a time zone, got {time!r}.")
  if not (count.isascii() and count.isdigit()):
    raise ValueError(f"count must be a non-negative integer, got {count!r}.")
  return [(at, int(count))]


def _order_samples(found: _Numbered, source: str) -> list[trace_lib.Step]:
  """Returns counts in order of time; `ValueError` if two samples contradict each other.

  Lines may overlap: a recorder repeats a reading for minutes while it takes the
  next ones, and a file may merge several recorders. The last reading counts.
  """
  by_start: dict[datetime.datetime, _Reading] = {}
  samples: list[tuple[datetime.datetime, _Reading]] = []
  for number, (at, count) in found:
    reading = samples[-1][1] if samples else None
    if reading and count == reading.count and reading.end < at <= reading.end + _REPEAT:
      reading.end = at
    else:
      reading = _Reading(number, at, at, count)
    samples.append((at, reading))
    other = by_start.setdefault(reading.start, reading)
    if other.count != reading.count:
      raise ValueError(
          f"{source}, line {reading.line}: {reading.count} live nodes, but "
          f"{other.count} at the same time in line {other.line}."
      )
  samples.sort(key=lambda sample: (sample[0], sample[1].start))
  start, newest = samples[0]
  steps = []
  for at, reading in samples:
    if reading.start >= newest.start or at > newest.end:
      newest = max(newest, reading, key=lambda r: r.start)
      steps.append(((at - start) // _MS, reading.count))
  return steps


def _find_holes(times: Sequence[datetime.datetime]) -> list[str]:
  """Returns a note on the times for which the recorder did not look, if there are any."""
  times = sorted({*times})
  gaps_secs = [(b - a).total_seconds() for a, b in itertools.pairwise(times)]
  least_secs = _HOLE * statistics.median(gaps_secs or [0])
  if not (holes := [secs for secs in gaps_secs if secs > least_secs]):
    return []
  return [
      f"the recorder has {len(holes)} hole{'s' * (len(holes) > 1)}, of up to {max(holes) / 60:.0f} "
      "min: the count before each is taken to last"
  ]


def render_events(trace: trace_lib.Trace) -> str:
  """Returns the trace as a file of events, the inverse of `parse_trace`."""
  lines = [f"# {note}" for note in trace.notes]
  lines.append(f"# duration_ms={trace.duration_ms}")
  lines += map(str, sorted((*trace.prices, *trace.events), key=_BY_TIME))
  return "\n".join([*lines, ""])


def _parse_ticks(text: str, *, source: str, zone: str, seed: int) -> trace_lib.Trace:
  """Returns the trace of a JSON file; `ValueError` names line or key."""
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
  lengths = {
      f"{key}.{name}".rstrip("."): len(values)
      for key, by_zone in (("data", data), ("prices", prices))
      for name, values in by_zone.items()
  }
  if len({*lengths.values()}) != 1:
    raise ValueError(
        f"{source}: data and prices must have as many ticks for each zone, got {lengths}."
    )
  tick_ms = lambda tick: round(1000 * gap * tick)
  changes = [
      trace_lib.Price(tick_ms(i), usd, name)
      for name, values in prices.items()
      for i, usd in enumerate(values)
      if not i or usd != values[i - 1]
  ]
  return _infer_nodes(
      {name: [(tick_ms(i), int(n)) for i, n in enumerate(live)] for name, live in data.items()},
      seed=seed,
      name=source,
      duration_ms=tick_ms(next(iter(lengths.values()))),
      prices=tuple(sorted(changes, key=_BY_TIME)),
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


def _is_number(value: Any) -> TypeGuard[float]:
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  return is_number and 0 <= value <= sys.float_info.max  # No int that is no float.


def _infer_nodes(
    steps: Mapping[str, Sequence[trace_lib.Step]],
    notes: Sequence[str] = (),
    *,
    seed: int,
    **trace: Any,
) -> trace_lib.Trace:
  """Returns a trace with these numbers of live nodes, by zone; lost nodes are random."""
  num_nodes = 0
  for zone_steps in steps.values():
    counts = [0, *(count for _, count in zone_steps)]
    if max(counts) > trace_lib.MAX_LIVE:
      raise ValueError(
          f"{trace['name']}: at most {trace_lib.MAX_LIVE} nodes may be alive in a zone, got "
          f"{max(counts)}."
      )
    num_nodes += sum(max(0, b - a) for a, b in itertools.pairwise(counts))
  if num_nodes > MAX_NODES:
    raise ValueError(f"{trace['name']}: a trace may have {MAX_NODES} nodes, got {num_nodes}.")
  events = []
  for zone, zone_steps in steps.items():
    if re.search(r"[\s,]", zone):
      raise ValueError(
          f"{trace['name']}: a zone must be a name without spaces or commas, got {zone!r}."
      )
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
  events.sort(key=_BY_TIME)  # Keeps the order of zones.
  note = f"the file names no nodes: a drop takes random ones (seed {seed})"
  return trace_lib.Trace(events=tuple(events), notes=(note, *notes), **trace)
