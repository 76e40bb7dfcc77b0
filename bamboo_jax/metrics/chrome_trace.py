"""Planned and measured steps as a Chrome trace, for Perfetto.

They are two processes with one thread per track, with a common start for
comparison. The format is Chromium's "Trace Event Format", in microseconds.
"""

from collections.abc import Sequence
import itertools
import json
import os
from typing import Any

from bamboo_jax import base
from bamboo_jax.metrics import rows as rows_lib

_DEATH = "death"  # Category of the moment at which the node of a track dies.

Entry = tuple[int, rows_lib.TrackSlot]  # A step, and a slot in ms after the first one.


def write(path: str | os.PathLike[str], steps: Sequence[rows_lib.Step]) -> None:
  """Writes steps as a Chrome trace, atomically.

  A thread of a trace cannot have overlapping slots, so those of a track are put
  on further threads "node 0 (2)", "node 0 (3)" and so on.
  """
  planned: list[Entry] = []
  measured: list[Entry] = []
  for step in steps:
    begin_ms = 1e3 * (step.at_secs - steps[0].at_secs)
    dead = [rows_lib.TrackSlot(n, f"{n} dies", _DEATH, ms, ms) for n, ms in step.deaths]
    for entries, slots in ((planned, step.planned), (measured, [*step.measured, *dead])):
      for track, name, category, start_ms, end_ms in slots:
        slot = rows_lib.TrackSlot(track, name, category, begin_ms + start_ms, begin_ms + end_ms)
        entries.append((step.step, slot))
  events = [*_events(1, "planned", planned), *_events(2, "measured", measured)]
  text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False)
  base.write_atomically(path, text + "\n")


def _events(pid: int, process: str, entries: Sequence[Entry]) -> list[dict[str, Any]]:
  events = [_name_event("process_name", pid, 0, process)]
  threads = itertools.count(1)
  for track in rows_lib.tracks(slot for _, slot in entries):
    mine = sorted((e for e in entries if e[1].track == track), key=lambda e: e[1][3:])
    for number, lane in enumerate(_split_lanes(mine), start=1):
      tid = next(threads)
      name = track if number == 1 else f"{track} ({number})"
      events.append(_name_event("thread_name", pid, tid, name))
      events += [_slot_event(pid, tid, *entry) for entry in lane]
  return events


def _split_lanes(entries: Sequence[Entry]) -> list[list[Entry]]:
  """Assigns each slot, in order of start, to the first free lane."""
  lanes: list[list[Entry]] = []
  for entry in entries:
    for lane in lanes:
      if _nanosecs(lane[-1][1].end_ms) <= _nanosecs(entry[1].start_ms):
        lane.append(entry)
        break
    else:
      lanes.append([entry])
  return lanes


def _nanosecs(time_ms: float) -> int:
  return round(1e6 * time_ms)


def _name_event(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
  args = {"name": name}
  return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _slot_event(pid: int, tid: int, step: int, slot: rows_lib.TrackSlot) -> dict[str, Any]:
  start = _nanosecs(slot.start_ms)
  event = {
      "name": slot.name,
      "cat": slot.category,
      "pid": pid,
      "tid": tid,
      "ts": start / 1000,
      "args": {"step": step},
  }
  if slot.category == _DEATH:
    return {"ph": "i", "s": "t"} | event
  return {"ph": "X", **event, "dur": (_nanosecs(slot.end_ms) - start) / 1000}
