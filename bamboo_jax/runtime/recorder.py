"""Measures when instructions run, without making the walking thread wait.

Programs are dispatched ahead and end later. One thread per node waits for the
results in row order and notes the time. As a device runs its row in order, an
instruction started when the one before it had ended, or when it was dispatched,
whichever came later.
"""

import dataclasses
import queue
import threading
import time
from typing import Any

import jax

from bamboo_jax.schedule import instruction as instruction_lib

Instruction = instruction_lib.Instruction


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
  """An instruction that has run.

  Attributes:
    node: Node that ran it.
    instruction: What it ran.
    start_secs: Time on `time.perf_counter` at which it started.
    end_secs: Time at which its results were ready.
  """

  node: int
  instruction: Instruction
  start_secs: float
  end_secs: float


class Recorder:
  """Notes the times of the instructions of one step after the other."""

  def __init__(self, nodes: list[int]) -> None:
    self._queues = {node: queue.SimpleQueue() for node in nodes}
    self._done = queue.SimpleQueue()
    self._threads = [
        threading.Thread(
            target=self._watch, args=(node,), name=f"watch-{node}", daemon=True
        )
        for node in nodes
    ]
    for thread in self._threads:
      thread.start()

  def add(self, node: int, instruction: Instruction, result: Any) -> None:
    """Records `instruction`, which ends when `result` is ready.

    Args:
      node: Node that runs it.
      instruction: What was just dispatched.
      result: Arrays that are never donated.
    """
    entry = (instruction, time.perf_counter(), result)
    self._queues[node].put(entry)

  def finish(self) -> list[Measured]:
    """Blocks until all have run; returns them, node by node in row order.

    Raises the error of the first instruction that failed.
    """
    for waiting in self._queues.values():
      waiting.put(None)
    measured = []
    error = None
    for _ in self._queues:
      row = self._done.get()
      if isinstance(row, BaseException):
        error = row
      else:
        measured.extend(row)
    if error is not None:
      raise error
    return sorted(measured, key=lambda m: (m.node, m.start_secs, m.end_secs))

  def close(self) -> None:
    """Ends the threads."""
    for waiting in self._queues.values():
      waiting.put("close")
    for thread in self._threads:
      thread.join()

  def _watch(self, node: int) -> None:
    row, error, last = [], None, 0.0
    waiting = self._queues[node]
    while (entry := waiting.get()) != "close":
      if entry is None:
        self._done.put(row if error is None else error)
        row, error = [], None
        continue
      instruction, dispatched, result = entry
      try:
        jax.block_until_ready(result)
      except Exception as failure:  # Passed on by `finish`.
        error = error or failure
        continue
      end = time.perf_counter()
      row.append(Measured(node, instruction, max(last, dispatched), end))
      last = end
