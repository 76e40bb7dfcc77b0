"""Writes a member's file of `metrics.rows`, in a thread beside the steps."""

import collections
from collections.abc import Iterable
import dataclasses
import pathlib
import queue
import threading
import time
from typing import Any

from absl import logging

from bamboo_jax.base import threads
from bamboo_jax.metrics import chrome_trace
from bamboo_jax.metrics import rows as rows_lib
from bamboo_jax.train import step as step_lib
from bamboo_jax.train.record import step_slots
from bamboo_jax.train.record import workdir as workdir_lib

_PAUSE_SECS = 0.5  # Between two writes, however short the steps are.
_FLUSH_SECS = 5.0  # For the last write; the folder may hang.


class RowFile:
  """Writes the last `num_steps` of the member `name`; does not block its steps.

  A member that is alone has no name and writes nothing. After an error of the
  folder, which is logged, nothing more is written.
  """

  def __init__(
      self, folder: pathlib.Path, name: str, *, num_steps: int
  ) -> None:
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

  def _replace(
      self, done: step_lib.Committed, at_secs: float, with_plan: bool
  ) -> None:
    if with_plan and done.planned is not self._planned and done.planned:
      slots = rows_lib.pack(step_slots.planned_slots(done.planned))
      planned = rows_lib.StepRows(done.steps, at_secs, done.start_secs, slots)
      rows_lib.write(self._folder / rows_lib.PLANNED, [planned])
      self._planned = done.planned
    measured = []
    for d, secs, _ in self._last:
      slots = step_slots.measured_slots(d.measured, start_secs=d.start_secs)
      packed = rows_lib.pack(slots)
      measured.append(rows_lib.StepRows(d.steps, secs, d.start_secs, packed))
    rows_lib.write(self._folder / f"{self._name}.json", measured)


def clear(folder: pathlib.Path) -> None:
  """Removes the files of an earlier run."""
  for path in folder.glob("*.json"):
    path.unlink(missing_ok=True)


def write_trace(
    workdir: workdir_lib.Workdir,
    name: str,
    steps: Iterable[step_lib.Committed],
    *,
    since_secs: float,
) -> None:
  """Writes the trace of steps of the member `name`, with rows of all members.

  `since_secs` is its time 0. Writes nothing if no step was measured.
  """
  steps = list(steps)
  if not any(done.measured for done in steps):
    return
  members = rows_lib.read_members(workdir.rows)
  begins = {rows.step: rows.at_secs for rows in members.pop(name, ())}
  others = [rows for found in members.values() for rows in found]
  traced = []
  for done in steps:
    step = step_slots.traced_step(done, since_secs=since_secs)
    measured = list(step.measured)
    for rows in others:
      if rows.step == step.step in begins:
        later_ms = 1e3 * (rows.at_secs - begins[step.step])
        measured += rows_lib.unpack(rows.shifted(later_ms))
    traced.append(dataclasses.replace(step, measured=measured))
  chrome_trace.write(workdir.trace, traced)
