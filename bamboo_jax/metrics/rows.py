"""What the nodes of a run did in their last steps, and what was planned for them.

A member replaces `rows/NAME.json` after its steps; `rows/planned.json` has the last plans
of all nodes. `read_steps` joins them, for pages and figures, and `write_trace` for Perfetto.
They decide nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import json
import os
import pathlib
import re
from typing import Any, NamedTuple

import msgspec

from bamboo_jax import base

PLANNED = "planned.json"
_DEATH = "death"  # Category of the moment at which the node of a track dies.


class TrackSlot(NamedTuple):
  """One interval of a track, such as a node "n3", in ms after the step's start.

  `category`, such as "forward", selects the colour.
  """

  track: str
  name: str
  category: str
  start_ms: float
  end_ms: float


@dataclasses.dataclass(frozen=True)
class StepRows:
  """What a member measured in a step, or a plan and the first step that had it.

  Attributes:
    step: Number of the step, from 1.
    at_secs: Start of the step in seconds since 1970, as machines differ in
      `time.perf_counter`.
    start_secs: The same moment on the `time.perf_counter` of the member.
    slots: As lists in a file, since a page shows thousands.
  """

  step: int
  at_secs: float
  start_secs: float
  slots: Sequence[TrackSlot]


class Step(NamedTuple):
  """A step of all nodes.

  Attributes:
    step: Its number; 0 if there is only a plan.
    at_secs: Its start, in seconds since 1970.
    deaths: Names of nodes, and when their deaths became known, in ms after its start.
  """

  step: int
  at_secs: float
  planned: Sequence[TrackSlot]
  measured: Sequence[TrackSlot] = ()
  deaths: Sequence[tuple[str, float]] = ()


def delay(slots: Iterable[TrackSlot], ms: float) -> list[TrackSlot]:
  """Returns slots, `ms` later."""
  return [TrackSlot(t, n, c, a + ms, b + ms) for t, n, c, a, b in slots]


def write(path: pathlib.Path, steps: Iterable[StepRows]) -> None:
  """Writes steps to a file, which is replaced.

  Raises `OSError`, or `ValueError` if a time is not finite.
  """
  content = [vars(rows) for rows in steps]
  text = json.dumps(content, separators=(",", ":"), allow_nan=False)
  base.write_atomically(path, text + "\n", sync=False)


def _read(path: pathlib.Path) -> list[StepRows]:
  """Returns the steps in a file; empty if it is absent or damaged."""
  try:
    return msgspec.json.decode(path.read_bytes(), type=list[StepRows])
  except (OSError, msgspec.DecodeError):
    return []  # Without it less is shown.


def read_steps(folder: pathlib.Path, recoveries: Iterable[Mapping[str, Any]]) -> list[Step]:
  """Returns the last steps that members have measured, in order, as many as one keeps.

  If there are none, returns the plan, if there is one. `recoveries` are those in the log.
  """
  plans = _read(folder / PLANNED)
  steps: dict[int, list[StepRows]] = {}
  num_kept = 0
  for path in sorted(folder.glob("*.json")):
    if path.name != PLANNED:
      kept = {rows.step: rows for rows in _read(path)}  # Steps may be repeated.
      num_kept = max(num_kept, len(kept))
      for rows in kept.values():
        if rows.slots:
          steps.setdefault(rows.step, []).append(rows)
  if not steps:
    return [Step(0, plan.at_secs, plan.slots) for plan in plans[-1:]]
  recoveries = list(recoveries)
  found = []
  for step, members in sorted(steps.items())[-num_kept:]:  # Who is dead has older ones.
    at_secs = min(rows.at_secs for rows in members)
    plan = next((plan for plan in reversed(plans) if plan.step <= step), None)
    found.append(
        Step(
            step,
            at_secs,
            planned=plan.slots if plan else (),
            measured=[
                slot
                for rows in members
                for slot in delay(rows.slots, round(1e3 * (rows.at_secs - at_secs), 3))
            ],
            deaths=[
                (name, max(0.0, 1e3 * (recovery["view_at_secs"] - members[0].start_secs)))
                for recovery in recoveries
                if recovery["step"] == step
                for name in recovery["names"]
            ],
        )
    )
  return found


def tracks(slots: Iterable[TrackSlot]) -> tuple[str, ...]:
  """Returns the distinct tracks, in natural order: 2 before 10."""
  words = lambda name: filter(None, re.split(r"(\d+)", name))
  key = lambda name: [(0, int(w), "") if w.isdecimal() else (1, 0, w) for w in words(name)]
  return tuple(sorted({slot.track for slot in slots}, key=key))


def write_trace(path: str | os.PathLike[str], steps: Sequence[Step]) -> None:
  """Writes planned and measured steps as a Chrome trace, for Perfetto, atomically.

  They are two processes with one thread per track, with a common start for comparison. The
  format is Chromium's "Trace Event Format", in microseconds.

  A thread of a trace cannot have overlapping slots, so those of a track are put
  on further threads "node 0 (2)", "node 0 (3)" and so on.
  """
  shown: tuple[list[tuple[int, TrackSlot]], ...] = ([], [])  # Planned and measured, by step.
  for step in steps:
    ms = 1e3 * (step.at_secs - steps[0].at_secs)
    dead = [TrackSlot(n, f"{n} dies", _DEATH, at_ms, at_ms) for n, at_ms in step.deaths]
    for entries, slots in zip(shown, (step.planned, [*step.measured, *dead]), strict=True):
      entries += [(step.step, slot) for slot in delay(slots, ms)]
  events: list[dict[str, Any]] = []
  for pid, (process, entries) in enumerate(zip(("planned", "measured"), shown, strict=True), 1):
    name = {"ph": "M", "pid": pid}
    events.append(name | {"name": "process_name", "tid": 0, "args": {"name": process}})
    order = {track: i for i, track in enumerate(tracks(slot for _, slot in entries))}
    ends: dict[tuple[str, int], int] = {}  # Of the last slot of each thread, in nanoseconds.
    for step_number, slot in sorted(entries, key=lambda e: (order[e[1].track], *e[1][3:])):
      start, end = (round(1e6 * ms) for ms in slot[3:])
      lane = next(n for n in itertools.count(1) if ends.get((slot.track, n), start) <= start)
      if (slot.track, lane) not in ends:
        title = slot.track if lane == 1 else f"{slot.track} ({lane})"
        thread = {"name": "thread_name", "tid": len(ends) + 1, "args": {"name": title}}
        events.append(name | thread)
      ends[slot.track, lane] = end
      event = {"name": slot.name, "cat": slot.category, "pid": pid, "args": {"step": step_number}}
      event |= {"tid": [*ends].index((slot.track, lane)) + 1, "ts": start / 1000}
      is_death = slot.category == _DEATH
      event |= {"ph": "i", "s": "t"} if is_death else {"ph": "X", "dur": (end - start) / 1000}
      events.append(event)
  text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False)
  base.write_atomically(path, text + "\n")
