"""Planned and measured steps as a Chrome trace, for Perfetto.

They are two processes with one thread per track, with a common start for
comparison. The format is Chromium's "Trace Event Format", in microseconds.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import itertools
import json
import os
import pathlib
from typing import Any

from bamboo_jax import base
from bamboo_jax.metrics import slot as slot_lib

TrackSlot = slot_lib.TrackSlot

_PLANNED, _MEASURED = 1, 2  # Numbers of the processes.


@dataclasses.dataclass(frozen=True)
class TracedStep:
  """Slots of one step that starts `start_ms` after the start of the run."""

  step: int
  start_ms: float
  planned: Sequence[TrackSlot]
  measured: Sequence[TrackSlot]


def write(path: str | os.PathLike[str], steps: Iterable[TracedStep]) -> None:
  """Writes steps as a Chrome trace, atomically.

  A thread of a trace cannot have overlapping slots, so those of a track are put
  on further threads "node 0 (2)", "node 0 (3)" and so on.
  """
  base.write_atomically(path, _render(tuple(steps)))


def read_last(path: str | os.PathLike[str]) -> TracedStep:
  """Returns the last step in a file of `write`, or one with number 0.

  It starts at 0, and the `meaning` of its slots is empty. Raises `OSError`, and
  `ValueError` for another file.
  """
  try:
    events = json.loads(pathlib.Path(path).read_text())["traceEvents"]
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"].partition(" (")[0]
        for event in events
        if event["name"] == "thread_name"
    }
    slots = [event for event in events if event["ph"] in "Xi"]
    last = max((event["args"]["step"] for event in slots), default=0)
    slots = [event for event in slots if event["args"]["step"] == last]
    start = min((event["ts"] for event in slots), default=0.0)
    found: dict[int, list[TrackSlot]] = {_PLANNED: [], _MEASURED: []}
    for event in slots:
      start_us = event["ts"] - start
      slot = TrackSlot(
          track=tracks[event["pid"], event["tid"]],
          name=event["name"],
          start_ms=start_us / 1000,
          end_ms=(start_us + event.get("dur", 0.0)) / 1000,
          category=event["cat"],
      )
      found[event["pid"]].append(slot)
    return TracedStep(last, 0.0, found[_PLANNED], found[_MEASURED])
  except (KeyError, TypeError, json.JSONDecodeError) as error:
    raise ValueError(f"{path} is not the trace of a run: {error!r}.") from error


def _render(steps: Sequence[TracedStep]) -> str:
  events = []
  for pid, kind in ((_PLANNED, "planned"), (_MEASURED, "measured")):
    slots = [
        (step, step.start_ms + slot.start_ms, step.start_ms + slot.end_ms, slot)
        for step in steps
        for slot in getattr(step, kind)
    ]
    events.append(_name_event("process_name", pid, 0, kind))
    threads = itertools.count(1)
    for track in slot_lib.tracks(slot for *_, slot in slots):
      mine = sorted((s for s in slots if s[3].track == track), key=lambda s: s[1:3])
      for number, lane in enumerate(_split_lanes(mine), start=1):
        tid = next(threads)
        name = track if number == 1 else f"{track} ({number})"
        events.append(_name_event("thread_name", pid, tid, name))
        events.extend(_slot_event(pid, tid, *entry) for entry in lane)
  return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def _split_lanes(slots: Sequence[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
  """Assigns each slot, in order of start, to the first free lane."""
  lanes: list[list[tuple[Any, ...]]] = []
  for entry in slots:
    for lane in lanes:
      if _nanosecs(lane[-1][2]) <= _nanosecs(entry[1]):
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


def _slot_event(
    pid: int, tid: int, step: TracedStep, start_ms: float, end_ms: float, slot: TrackSlot
) -> dict[str, Any]:
  start = _nanosecs(start_ms)
  event = {
      "name": slot.name,
      "cat": slot.category,
      "pid": pid,
      "tid": tid,
      "ts": start / 1000,
      "args": {"step": step.step},
  }
  if slot.category == slot_lib.DEATH:
    return {"ph": "i", "s": "t"} | event
  return {"ph": "X", **event, "dur": (_nanosecs(end_ms) - start) / 1000}
