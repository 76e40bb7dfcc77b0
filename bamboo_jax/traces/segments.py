"""Reads events as Parcae (NSDI'24) keeps them: JSON, a line for each interval.

  [60000, "remove", {"nodes": ["node-3", "node-1"], "duration": 60000}]

Other kinds than "add" and "remove", such as "no-op", are intervals without an
event; other keys, such as Parcae's own decisions, are left out.
"""

from collections.abc import Sequence
import json
from typing import Any

from bamboo_jax.traces import trace as trace_lib


def parse_segments(
    lines: Sequence[tuple[int, str]], *, source: str
) -> trace_lib.Trace:
  """Returns the trace; raises `ValueError`, which names the line."""
  events, end_ms = [], 0
  for number, line in lines:
    try:
      time_ms, kind, nodes, duration_ms = _parse_line(line)
      if kind in ("add", "remove"):
        events += [trace_lib.Event(time_ms, kind, node) for node in nodes]
      end_ms = max(end_ms, time_ms + duration_ms)
    except ValueError as error:
      raise ValueError(f"{source}, line {number}: {error}") from None
  try:
    return trace_lib.Trace(source, tuple(events), duration_ms=end_ms)
  except ValueError as error:
    raise ValueError(f"{source}: {error}") from None


def _parse_line(line: str) -> tuple[int, str, list[str], int]:
  try:
    found = json.loads(line)
  except json.JSONDecodeError as error:
    raise ValueError(f"not JSON: {error.msg}, got {line:.80}") from None
  match found:
    case [time_ms, str(kind), {"nodes": list(nodes), "duration": duration}]:
      if _is_time(time_ms) and _is_time(duration):
        if all(isinstance(node, str) for node in nodes):
          return time_ms, kind, nodes, duration
  raise ValueError(
      'a line is [milliseconds, kind, {"nodes": [...], "duration": '
      f"milliseconds}}], got {line:.80}"
  )


def _is_time(value: Any) -> bool:
  return type(value) is int and value >= 0
