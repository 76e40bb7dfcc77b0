"""Measures when instructions run, without blocking the walking thread.

Programs are dispatched ahead and end later. One thread per node waits for the
results in row order. A device runs its row in order, so an instruction started
when its predecessor ended or when it was dispatched, whichever came later.
"""

import dataclasses
import queue
import threading
import time
from typing import Any

import jax

from bamboo_jax import base
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.schedule import instruction as instruction_lib

Instruction = instruction_lib.Instruction


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredInstruction:
  """An instruction that has run, with its start and end.

  Times are on `time.perf_counter`.
  """

  node: base.NodeId
  instruction: Instruction
  start_secs: float
  end_secs: float


class Recorder:
  """Measures the instructions of successive steps."""

  def __init__(self) -> None:
    self._watches: dict[base.NodeId, _Watch] = {}
    self._forgotten: list[_Watch] = []

  def add(self, node: base.NodeId, instruction: Instruction, result: Any) -> None:
    """Records `instruction`, which ends when `result` is ready.

    `result` must never be donated.
    """
    if node not in self._watches:
      self._watches[node] = _Watch(node)
    watch = self._watches[node]
    watch.entries.put((watch.round, instruction, time.perf_counter(), result))

  def forget(self, node: base.NodeId) -> None:
    """Drops the unfinished instructions of `node`, which has died.

    Its thread ends by itself; does not block.
    """
    if node in self._watches:
      watch = self._watches.pop(node)
      watch.is_dead = True
      watch.entries.put(None)
      self._forgotten.append(watch)

  def forgive(self) -> None:
    """Ignores errors of everything recorded so far, also later errors.

    They are consequences of a death that is known. Does not block.
    """
    for watch in self._watches.values():
      watch.round += 1

  def finish(self) -> list[MeasuredInstruction]:
    """Blocks until everything recorded has run; raises the first error.

    Returns all that ran since the last call, node by node.
    """
    for watch in self._watches.values():
      watch.entries.join()
      failed, watch.error = watch.error, None
      if failed is not None and failed[0] == watch.round:
        raise failed[1]
    # First, so that none ends unseen in between.
    left = [watch for watch in self._forgotten if watch.thread.is_alive()]
    measured = []
    for watch in [*self._watches.values(), *self._forgotten]:
      found, watch.measured = watch.measured, []
      measured += found
    self._forgotten = left
    return sorted(measured, key=lambda m: (m.node, m.start_secs, m.end_secs))

  def close(self) -> None:
    for watch in self._watches.values():
      watch.entries.put(None)
    for watch in [*self._watches.values(), *self._forgotten]:
      watch.thread.join()


class _Watch:
  """The thread that waits for the results of one node."""

  def __init__(self, node: base.NodeId) -> None:
    self.is_dead = False
    self.entries = queue.Queue[Any]()
    self.measured: list[MeasuredInstruction] = []
    self.round = 0  # Counts calls of `Recorder.forgive`.
    self.error: tuple[int, Exception] | None = None
    name = f"watch-{node}"
    self.thread = threading.Thread(target=self._watch, args=(node,), name=name, daemon=True)
    self.thread.start()

  def _watch(self, node: base.NodeId) -> None:
    last = 0.0
    while (entry := self.entries.get()) is not None:
      number, instruction, dispatched, result = entry
      try:
        jax.block_until_ready(result)
        start, end = max(last, dispatched), time.perf_counter()
        if isinstance(result, node_lib.Paced):
          start, end = result.start_secs, result.end_secs
        self.measured.append(MeasuredInstruction(node, instruction, start, end))
        last = end
      except Exception as error:  # Raised by `finish`, unless the node died.
        # An error of an older round was forgiven.
        first = self.error is None or self.error[0] < number
        if not self.is_dead and first:
          self.error = number, error
      finally:
        entry = result = None  # Drops the references to the last results.
        self.entries.task_done()
