"""What the nodes of a run did in their last steps: a small file for each.

A member replaces `rows/NAME.json` after its steps; `rows/planned.json` has the
plan of a whole step of all nodes. A page shows them while the run goes on, and
`trace.json` holds all of them in the end. They decide nothing.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import json
import os
import pathlib

from bamboo_jax import base
from bamboo_jax.metrics import slot as slot_lib

PLANNED = "planned.json"


# Track, name, category, start and end, see `slot.TrackSlot`; as in the file.
Row = tuple[str, str, str, float, float]


@dataclasses.dataclass(frozen=True)
class StepRows:
  """The slots of one step, in milliseconds after its start.

  Attributes:
    step: Number of the step, from 1.
    at_secs: Start of the step in seconds since 1970, as machines differ in
      `time.perf_counter`.
    start_secs: The same moment on the `time.perf_counter` of the member.
    slots: As plain lists, since a page shows thousands.
  """

  step: int
  at_secs: float
  start_secs: float
  slots: Sequence[Row]

  def shifted(self, ms: float) -> list[Row]:
    ms = round(ms, 3)
    return [(t, n, c, a + ms, b + ms) for t, n, c, a, b in self.slots]


def pack(slots: Iterable[slot_lib.TrackSlot]) -> list[Row]:
  """Returns slots in the form of `StepRows`, to the microsecond."""
  return [(s.track, s.name, s.category, round(s.start_ms, 3), round(s.end_ms, 3)) for s in slots]


def unpack(rows: Iterable[Row]) -> list[slot_lib.TrackSlot]:
  """Returns the slots of `pack`."""
  return [
      slot_lib.TrackSlot(track, name, start_ms, end_ms, category)
      for track, name, category, start_ms, end_ms in rows
  ]


def write(path: pathlib.Path, steps: Iterable[StepRows]) -> None:
  """Writes steps to a file, which is replaced; raises `OSError`."""
  text = json.dumps([vars(rows) for rows in steps], separators=(",", ":"))
  base.write_atomically(path, text + "\n", sync=False)


def read(path: str | os.PathLike[str]) -> tuple[StepRows, ...]:
  """Returns the steps in a file; empty if it is absent or damaged."""
  try:
    content = json.loads(pathlib.Path(path).read_bytes())
    return tuple(StepRows(**entry) for entry in content)
  except (OSError, ValueError, TypeError):
    return ()  # Without it less is shown.


def read_members(folder: pathlib.Path) -> dict[str, tuple[StepRows, ...]]:
  """Returns the steps of each member that has a file in the folder."""
  paths = sorted(p for p in folder.glob("*.json") if p.name != PLANNED)
  return {path.stem: found for path in paths if (found := read(path))}
