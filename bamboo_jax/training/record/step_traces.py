"""Planned and measured steps, for pages, pictures and traces.

`RowFile` writes a member's last steps in a thread beside the steps, as a file
of `metrics.rows`; `write_trace` joins those of all members for Perfetto.
`Profiler` has XLA trace some steps for XProf: `config.metrics.profile_steps`.
"""

import collections
from collections.abc import Callable, Sequence
import dataclasses
import os
import pathlib
import queue
import threading
import time
from typing import Any

from absl import logging
import jax

from bamboo_jax import base
from bamboo_jax.base import logs, threads
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
_FLUSH_SECS = 5.0  # For the last write; the folder may hang.
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


class RowFile:
  """Writes the last `num_steps` of the member `name`; does not block its steps.

  A member that is alone has no name and writes nothing. After an error of the
  folder, which is logged, nothing more is written.
  """

  def __init__(self, folder: pathlib.Path, name: str, *, num_steps: int) -> None:
    self._folder, self._name = folder, name
    self._last: collections.deque[Any] = collections.deque(maxlen=num_steps)
    self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
    self._planned: object = None
    if name:
      threads.call_beside(self._run, name="rows")

  def add(self, done: step_lib.Committed, *, with_plan: bool) -> None:
    """Adds a step; `with_plan`: also writes the plan of all nodes if new."""
    if not self._name:
      return
    at_secs = time.time() + done.start_secs - time.perf_counter()
    self._queue.put((done, at_secs, with_plan))

  def flush(self) -> None:
    """Waits until all steps are written, at most five seconds."""
    if not self._name:
      return
    flushed = threading.Event()
    self._queue.put(flushed)
    flushed.wait(_FLUSH_SECS)

  def _run(self) -> None:
    try:
      self._folder.mkdir(exist_ok=True)
      while True:
        self._write()
        time.sleep(_PAUSE_SECS)
    except OSError as error:
      logging.warning("No more rows for pages and traces: %s", error)
    while True:  # Drops steps, for they will not be written.
      if isinstance(item := self._queue.get(), threading.Event):
        item.set()

  def _write(self) -> None:
    """Waits for the next step, and writes all that there are by then."""
    items = [self._queue.get()]
    while not self._queue.empty():
      items.append(self._queue.get())
    flushed = [item for item in items if isinstance(item, threading.Event)]
    steps = [item for item in items if not isinstance(item, threading.Event)]
    try:
      if steps:
        self._last += steps
        self._replace(*steps[-1])
    finally:
      for event in flushed:
        event.set()

  def _replace(self, done: step_lib.Committed, at_secs: float, with_plan: bool) -> None:
    if with_plan and done.planned is not self._planned and done.planned:
      slots = rows_lib.pack(planned_slots(done.planned, logs.name_of))
      planned = rows_lib.StepRows(done.steps, at_secs, done.start_secs, slots)
      rows_lib.write(self._folder / rows_lib.PLANNED, [planned])
      self._planned = done.planned
    measured = []
    for d, secs, _ in self._last:
      packed = rows_lib.pack(measured_slots(d))
      measured.append(rows_lib.StepRows(d.steps, secs, d.start_secs, packed))
    rows_lib.write(self._folder / f"{self._name}.json", measured)


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
