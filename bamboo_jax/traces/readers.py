"""Reads and writes traces; the format is detected from the content.

  events   `milliseconds,add|remove|notice,node`, in order of time
  samples  `date, time, count`, in any order, see `samples`
  counts   `milliseconds,count`, in order of time; the last of a time counts
  JSON     counts at every tick, see `counts`
  lines of JSON  events of intervals, such as
      `[60000, "remove", {"nodes": ["node-3", "node-1"], "duration": 60000}]`

Between events, `milliseconds,price,dollars` gives the hourly price of a node
from then on, `milliseconds,price,zone/dollars` that of a zone's nodes. Lines of
events that begin with `#` are comments, but `# duration_ms=N` sets the end of
the trace (by default the last event), and `# start_hour=H` its hour of the day
(by default 0).
"""

from collections.abc import Iterator, Sequence
import json
import operator
import os
import re
from typing import Any, NamedTuple

from bamboo_jax.base import packaged
from bamboo_jax.traces import counts as trace_counts, samples, scale, trace as trace_lib

_SETTING = re.compile(r"#\s*(duration_ms|start_hour)\s*=\s*(.*)")


def read_traces(
    paths: Sequence[str | os.PathLike[str]], *, seed: int = 0, json_data: str = "counts"
) -> trace_lib.Trace:
  """Returns the trace in the files; several files are zones of one cluster.

  Nodes of counts are then named after their file: `us-east-1a/1` and on for
  `us-east-1a.json`. `seed` selects the removed nodes when a count drops;
  `json_data` is one of `counts.MEANINGS`. Raises `OSError`, or `ValueError`
  that names the line.
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
    traces.append(parse_trace(text, source=str(path), zone=zone, seed=seed, json_data=json_data))
  return traces[0] if len(traces) == 1 else scale.merge(traces)


def parse_trace(
    text: str, *, source: str, zone: str = "", seed: int = 0, json_data: str = "counts"
) -> trace_lib.Trace:
  """Returns the trace in `text`, in any of the formats.

  `source` names it, also in messages; `zone` is for nodes of samples and of
  JSON without zones. Raises `ValueError`, which names the line.
  """
  lines = [(n, line) for n, line in _lines(text) if not line.startswith("#")]
  given: dict[str, Any] = dict(source=source, zone=zone, seed=seed)
  number, first = lines[0] if lines else (0, "")
  second = first.split(",")[1].strip() if "," in first else ""
  if text.lstrip().startswith("{"):
    return trace_counts.parse_json(text, meaning=json_data, **given)
  if not lines:
    raise ValueError(f"{source} is empty: it has no event.")
  if first.startswith("["):
    return _parse_segments(lines, source=source)
  if re.fullmatch(r"\d+\s*,\s*\d+", first, flags=re.ASCII):
    return trace_counts.parse_counts(lines, **given)
  if ":" in second:
    return samples.parse_samples(lines, **given)
  if re.search("[a-z]", second, flags=re.IGNORECASE):
    return parse_events(text, source=source)
  raise ValueError(
      f"{source}, line {number}: not a trace. A line is "
      "milliseconds,add|remove|notice,node or milliseconds,count or date, "
      "time, count; or the file is JSON with metadata.gap_seconds and data, "
      f"or lines of JSON. Got {first!r:.80}."
  )


def parse_events(text: str, *, source: str) -> trace_lib.Trace:
  """Returns a trace written as events (format above).

  Raises `ValueError`, which names the line, if one is not an event or cannot
  follow its predecessors.
  """
  settings: dict[str, Any] = {}
  events, numbers, prices = [], [], []
  for number, line in _lines(text):
    try:
      if match := _SETTING.fullmatch(line):
        settings[match[1]] = _parse_setting(*match.groups())
      elif not line.startswith("#"):
        cells = _split_event(line)
        if cells.kind == "price":
          prices.append(_parse_price(cells.time_ms, cells.value))
        else:
          events.append(trace_lib.Event(*cells))
          numbers.append(number)
    except ValueError as error:
      raise ValueError(f"{source}, line {number}: {error}") from None
  if not events:
    raise ValueError(f"{source} is empty: it has no event.")
  if not settings.setdefault("duration_ms", events[-1].time_ms):
    raise ValueError(
        f"{source} must last some time. A line `# duration_ms=...` says when " "it ends."
    )
  try:
    return trace_lib.Trace(source, tuple(events), prices=tuple(prices), **settings)
  except trace_lib.ContradictionError as error:
    line = numbers[error.index]
    raise ValueError(f"{source}, line {line}: {error}") from None


def render_events(trace: trace_lib.Trace) -> str:
  """Returns the trace as a file of events, the inverse of `parse_events`."""
  lines = [f"# {note}" for note in trace.notes]
  lines.append(f"# duration_ms={trace.duration_ms}")
  if trace.start_hour:
    lines.append(f"# start_hour={trace.start_hour!r}")
  by_time = operator.attrgetter("time_ms")
  lines += map(str, sorted((*trace.prices, *trace.events), key=by_time))
  return "\n".join([*lines, ""])


def _lines(text: str) -> Iterator[tuple[int, str]]:
  for number, line in enumerate(text.splitlines(), 1):
    if line.strip():
      yield number, line.strip()


def _parse_setting(name: str, value: str) -> int | float:
  try:
    return int(value) if name == "duration_ms" else float(value)
  except ValueError:
    raise ValueError(f"{name} must be a number, got {value!r}.") from None


class _Cells(NamedTuple):
  time_ms: int
  kind: str
  value: str  # Node or price.


def _split_event(line: str) -> _Cells:
  cells = [cell.strip() for cell in line.split(",")]
  if len(cells) != 3:
    raise ValueError(
        "an event has 3 values, milliseconds,add|remove|notice,node, got " f"{line!r}."
    )
  time_ms, kind, value = cells
  if not re.fullmatch(r"\d+", time_ms, flags=re.ASCII):
    raise ValueError(f"milliseconds must be a non-negative integer, got {time_ms!r}.")
  return _Cells(int(time_ms), kind, value)


def _parse_price(time_ms: int, text: str) -> trace_lib.Price:
  zone, _, usd = text.rpartition("/")
  try:
    usd_per_hour = float(usd)
  except ValueError:
    raise ValueError(f"a price is dollars or zone/dollars, got {text!r}.") from None
  return trace_lib.Price(time_ms, usd_per_hour, zone)


def _parse_segments(lines: Sequence[tuple[int, str]], *, source: str) -> trace_lib.Trace:
  """Returns a trace of events in the format of Parcae (NSDI'24).

  Kinds other than "add" and "remove", such as "no-op", are intervals without an
  event; other keys, such as Parcae's own decisions, are ignored.
  """
  events, end_ms = [], 0
  for number, line in lines:
    try:
      s = _parse_segment(line)
      if s.kind in ("add", "remove"):
        events += [trace_lib.Event(s.time_ms, s.kind, n) for n in s.nodes]
      end_ms = max(end_ms, s.time_ms + s.duration_ms)
    except ValueError as error:
      raise ValueError(f"{source}, line {number}: {error}") from None
  try:
    return trace_lib.Trace(source, tuple(events), duration_ms=end_ms)
  except ValueError as error:
    raise ValueError(f"{source}: {error}") from None


class _Segment(NamedTuple):
  time_ms: int
  kind: str
  nodes: list[str]
  duration_ms: int


def _parse_segment(line: str) -> _Segment:
  try:
    found = json.loads(line)
  except json.JSONDecodeError as error:
    raise ValueError(f"not JSON: {error.msg}, got {line:.80}") from None
  match found:
    case [time_ms, str(kind), {"nodes": list(nodes), "duration": duration}]:
      if _is_time(time_ms) and _is_time(duration):
        if all(isinstance(node, str) for node in nodes):
          return _Segment(time_ms, kind, nodes, duration)
  raise ValueError(
      'a line is [milliseconds, kind, {"nodes": [...], "duration": '
      f"milliseconds}}], got {line:.80}"
  )


def _is_time(value: Any) -> bool:
  return type(value) is int and value >= 0
