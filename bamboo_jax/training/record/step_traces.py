"""Planned and measured steps, for pages, pictures and traces.

`RowLogger` writes a member's last steps as a file of `metrics.rows`; `write_trace`
joins those of all members for Perfetto.
`Profiler` has XLA trace some steps for XProf: `config.metrics.profile_steps`.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import os
import pathlib
import time
from typing import Any

import jax

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.metrics import (
    chrome_trace,
    plots,
    rows as rows_lib,
    schedule_plot,
    slot as slot_lib,
)
from bamboo_jax.schedule import instruction as instruction_lib, timeline as timeline_lib
from bamboo_jax.training import step as step_lib
from bamboo_jax.training.record import workdir as workdir_lib

Op = instruction_lib.Op

_PAUSE_SECS = 0.5  # Between two writes, however short the steps are.
_CATEGORIES = {Op.FORWARD: "forward", Op.REDUNDANT_FORWARD: "redundant", Op.BACKWARD: "backward"}
_OUTPUT = "output of stage {i.stage} for microbatch {i.microbatch}"
_MEANINGS = {
    Op.FORWARD: "forward pass of stage {i.stage}, microbatch {i.microbatch}",
    Op.BACKWARD: "backward pass of stage {i.stage}, microbatch {i.microbatch}",
    Op.REDUNDANT_FORWARD: ("redundant forward pass, stage {i.stage}, microbatch {i.microbatch}"),
    Op.SEND_ACTIVATION: _OUTPUT + ", to {peer}",
    Op.RECV_ACTIVATION: _OUTPUT + ", from {peer}",
    Op.SEND_GRAD: "gradient of the " + _OUTPUT + ", to {peer}",
    Op.RECV_GRAD: "gradient of the " + _OUTPUT + ", from {peer}",
}


class RowLogger:
  """A `logger.Logger` of the last `num_steps` of the member `name`, as a file of `metrics.rows`.

  `log` gets the step as "done", and "with_plan": whether to write the plan of all
  nodes, too, if it is new.
  """

  def __init__(self, folder: pathlib.Path, name: str, *, num_steps: int) -> None:
    folder.mkdir(exist_ok=True)
    self._folder, self._name, self._planned = folder, name, None
    self._last = collections.deque[step_lib.Committed](maxlen=num_steps)
    self._next_secs = 0.0

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    done = metrics["done"]
    self._last.append(done)
    if metrics["with_plan"] and done.planned is not self._planned and done.planned:
      planned = _pack(done, planned_slots(done.planned, logs.name_of))
      rows_lib.write(self._folder / rows_lib.PLANNED, [planned])
      self._planned = done.planned
    if time.monotonic() >= self._next_secs:
      self.close()

  def event(self, name: str, step: int, values: Mapping[str, Any]) -> None:
    pass

  def close(self) -> None:
    """Writes the file."""
    measured = [_pack(done, measured_slots(done)) for done in self._last]
    rows_lib.write(self._folder / f"{self._name}.json", measured)
    self._next_secs = time.monotonic() + _PAUSE_SECS


def _pack(done: step_lib.Committed, slots: Iterable[slot_lib.TrackSlot]) -> rows_lib.StepRows:
  at_secs = time.time() + done.start_secs - time.perf_counter()
  return rows_lib.StepRows(done.steps, at_secs, done.start_secs, rows_lib.pack(slots))


def clear(folder: pathlib.Path) -> None:
  """Removes the files of an earlier run."""
  for path in folder.glob("*.json"):
    path.unlink(missing_ok=True)


def write_trace(
    workdir: workdir_lib.Workdir,
    name: str,
    steps: Sequence[step_lib.Committed],
    *,
    since_secs: float,
) -> list[chrome_trace.TracedStep]:
  """Writes the trace of steps of the member `name`, with rows of all members.

  `since_secs` is its time 0. Returns the steps; writes nothing if none was
  measured.
  """
  if not any(done.instructions for done in steps):
    return []
  members = rows_lib.read_members(workdir.rows)
  begins = {rows.step: rows.at_secs for rows in members.pop(name, ())}
  others = [rows for found in members.values() for rows in found]
  traced = []
  for done in steps:
    step = traced_step(done, since_secs=since_secs)
    measured = list(step.measured)
    for rows in others:
      if rows.step == step.step in begins:
        later_ms = 1e3 * (rows.at_secs - begins[step.step])
        measured += rows_lib.unpack(rows.shifted(later_ms))
    traced.append(dataclasses.replace(step, measured=measured))
  chrome_trace.write(workdir.trace, traced)
  return traced


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


def traced_step(done: step_lib.Committed, *, since_secs: float) -> chrome_trace.TracedStep:
  """Returns a committed step as planned at its start, and as measured.

  A lost node is marked as dead when its loss became known.

  `since_secs` is the time 0 of the trace, on the clock of `done`.
  """
  deaths = [
      slot_lib.TrackSlot(name, f"{name} dies", ms, ms, slot_lib.DEATH)
      for r in done.recoveries
      for ms in [max(0.0, 1e3 * (r.view_at_secs - done.start_secs))]
      for name in r.names
  ]
  return chrome_trace.TracedStep(
      done.steps,
      1e3 * (done.start_secs - since_secs),
      planned_slots(done.planned, logs.name_of),
      (*measured_slots(done), *deaths),
  )


def plot_step(
    path: str | os.PathLike[str],
    steps: Sequence[chrome_trace.TracedStep],
    *,
    formats: Sequence[str],
) -> None:
  """Draws the last measured step without a death, or else the last one.

  A step with a death has several plans and is not comparable to its first.
  Draws nothing if no step was measured.
  """
  is_death = lambda slot: slot.category == slot_lib.DEATH
  steps = [s for s in steps if not all(map(is_death, s.measured))]
  if not steps:
    return
  step = next((s for s in reversed(steps) if not any(map(is_death, s.measured))), steps[-1])
  title = f"Step {step.step}"
  if victims := [slot.track for slot in step.measured if is_death(slot)]:
    title += f", in which {', '.join(victims)} died: planned before that"
  measured = [slot for slot in step.measured if not is_death(slot)]
  figure = schedule_plot.draw_schedule(title, planned=step.planned, measured=measured)
  plots.save_figure(figure, path, formats)


def planned_slots(
    timelines: Sequence[timeline_lib.Timeline],
    name: Callable[[base.NodeId], str] = "node {}".format,
) -> tuple[slot_lib.TrackSlot, ...]:
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


def measured_slots(done: step_lib.Committed) -> tuple[slot_lib.TrackSlot, ...]:
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
) -> slot_lib.TrackSlot:
  return slot_lib.TrackSlot(
      track=name(node),
      name=str(instruction),
      start_ms=start_ms,
      end_ms=end_ms,
      category=_CATEGORIES.get(instruction.op, "transfer"),
      meaning=_MEANINGS[instruction.op].format(
          i=instruction, peer="" if instruction.peer is None else name(instruction.peer)
      ),
  )
