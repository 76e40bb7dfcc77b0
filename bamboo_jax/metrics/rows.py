"""What the nodes of a run did in their last steps, and what was planned for them.

A member replaces `rows/NAME.json` after its steps; `rows/planned.json` has the last plans
of all nodes. `read_steps` joins them, for pages, figures and `trace.json`. They decide
nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import json
import pathlib
import re
from typing import Any, NamedTuple

from bamboo_jax import base

PLANNED = "planned.json"


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

  def after(self, ms: float) -> list[TrackSlot]:
    """Returns the slots, `ms` later."""
    ms = round(ms, 3)
    return [TrackSlot(t, n, c, a + ms, b + ms) for t, n, c, a, b in self.slots]


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
    return [StepRows(**entry) for entry in json.loads(path.read_bytes())]
  except (OSError, ValueError, TypeError):
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
    return [Step(0, plan.at_secs, plan.after(0.0)) for plan in plans[-1:]]
  recoveries = list(recoveries)
  found = []
  for step, members in sorted(steps.items())[-num_kept:]:  # Who is dead has older ones.
    at_secs = min(rows.at_secs for rows in members)
    plan = next((plan for plan in reversed(plans) if plan.step <= step), None)
    found.append(
        Step(
            step,
            at_secs,
            planned=plan.after(0.0) if plan else (),
            measured=[s for rows in members for s in rows.after(1e3 * (rows.at_secs - at_secs))],
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
  return tuple(sorted({slot.track for slot in slots}, key=_natural_key))


def _natural_key(name: str) -> list[tuple[int, int, str]]:
  words = filter(None, re.split(r"(\d+)", name))
  return [(0, int(w), "") if w.isdecimal() else (1, 0, w) for w in words]
