"""Planned and measured steps, for pages, pictures and traces.

`RowLogger` writes a member's last steps as a file of `metrics.rows`.
`Profiler` has XLA trace some steps for XProf: `config.metrics.profile_steps`.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import itertools
import pathlib
import time
from typing import Any

import jax

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.metrics import rows as rows_lib
from bamboo_jax.schedule import instruction as instruction_lib, timeline as timeline_lib
from bamboo_jax.training import step as step_lib

Op = instruction_lib.Op

_PAUSE_SECS = 0.5  # Between two writes, however short the steps are.
_CATEGORIES = {Op.FORWARD: "forward", Op.REDUNDANT_FORWARD: "redundant", Op.BACKWARD: "backward"}


class RowLogger:
  """A `loggers.Logger` of the last `num_steps` of the member `name`, as a file of `metrics.rows`.

  `log` gets the step as "done", and "with_plan": whether to write the plans of all
  nodes in these steps, too, if there is a new one.
  """

  def __init__(self, folder: pathlib.Path, name: str, *, num_steps: int) -> None:
    self._folder, self._name, self._planned = folder, name, None
    self._last = collections.deque[step_lib.StepRecord](maxlen=num_steps)
    self._next_secs = 0.0

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    done = metrics["done"]
    self._last.append(done)
    self._folder.mkdir(exist_ok=True)
    if metrics["with_plan"] and done.planned is not self._planned and done.planned:
      groups = itertools.groupby(self._last, key=lambda step: id(step.planned))
      firsts = [next(steps) for _, steps in groups]
      planned = [_pack(one, planned_slots(one.planned or (), logs.name_of)) for one in firsts]
      rows_lib.write(self._folder / rows_lib.PLANNED, planned)
      self._planned = done.planned
    if time.monotonic() >= self._next_secs:
      self.close()

  def event(self, name: str, step: int, values: Mapping[str, Any]) -> None:
    pass

  def close(self) -> None:
    """Writes the file, if a step was done."""
    if measured := [_pack(done, _measured_slots(done)) for done in self._last]:
      rows_lib.write(self._folder / f"{self._name}.json", measured)
    self._next_secs = time.monotonic() + _PAUSE_SECS


def _pack(done: step_lib.StepRecord, slots: Sequence[rows_lib.TrackSlot]) -> rows_lib.StepRows:
  at_secs = time.time() + done.start_secs - time.perf_counter()
  return rows_lib.StepRows(done.steps, at_secs, done.start_secs, slots)


def clear(folder: pathlib.Path) -> None:
  """Removes the files of an earlier run."""
  for path in folder.glob("*.json"):
    path.unlink(missing_ok=True)


class Profiler:
  """Traces this process while it runs `steps`, into `folder`."""

  def __init__(self, steps: range, folder: pathlib.Path) -> None:
    self._steps, self._folder = steps, folder
    self._is_on = False

  def note_done(self, step: int) -> None:
    """Starts or ends the trace after `step` steps."""
    is_due = step + 1 in self._steps
    if is_due and not self._is_on:
      jax.profiler.start_trace(str(self._folder))
    elif self._is_on and not is_due:
      jax.profiler.stop_trace()
    self._is_on = is_due

  def stop(self) -> None:
    """Ends the trace, if training ends within it."""
    if self._is_on:
      jax.profiler.stop_trace()
    self._is_on = False


def planned_slots(
    timelines: Sequence[timeline_lib.Timeline],
    name: Callable[[base.NodeId], str] = "node {}".format,
) -> tuple[rows_lib.TrackSlot, ...]:
  """Returns the slots of planned timelines, in ms, by place; `name` names a node."""
  place = lambda row: min(
      (s.instruction.stage for s in row if s.instruction.op == Op.FORWARD), default=0
  )
  return tuple(
      _slot(name, s.node, s.instruction, s.start_ms, s.end_ms)
      for timeline in timelines
      for row in sorted(timeline.rows.values(), key=place)
      for s in row
  )


def _measured_slots(done: step_lib.StepRecord) -> tuple[rows_lib.TrackSlot, ...]:
  """Returns the measured slots of a step, in milliseconds since its start."""
  ms = lambda secs: 1e3 * (secs - done.start_secs)
  return tuple(
      _slot(logs.name_of, m.node, m.instruction, ms(m.start_secs), ms(m.end_secs))
      for m in done.instructions
  )


def _slot(
    name: Callable[[base.NodeId], str],
    node: base.NodeId,
    instruction: instruction_lib.Instruction,
    start_ms: float,
    end_ms: float,
) -> rows_lib.TrackSlot:
  category = _CATEGORIES.get(instruction.op, "transfer")
  return rows_lib.TrackSlot(
      name(node), str(instruction), category, round(start_ms, 3), round(end_ms, 3)
  )
