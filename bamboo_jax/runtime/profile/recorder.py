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
    self._watches[node].add(instruction, result)

  def forget(self, node: base.NodeId) -> None:
    """Drops the unfinished instructions of `node`, which has died.

    Its thread ends by itself; does not block.
    """
    if node in self._watches:
      watch = self._watches.pop(node)
      watch.is_dead = True
      watch.end()
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
      watch.wait()
    # Before `take`, so that none ends unseen in between.
    left = [watch for watch in self._forgotten if watch.thread.is_alive()]
    measured = []
    for watch in [*self._watches.values(), *self._forgotten]:
      measured += watch.take()
    self._forgotten = left
    return sorted(measured, key=lambda m: (m.node, m.start_secs, m.end_secs))

  def close(self) -> None:
    for watch in self._watches.values():
      watch.end()
    for watch in [*self._watches.values(), *self._forgotten]:
      watch.thread.join()


class _Watch:
  """The thread that waits for the results of one node."""

  def __init__(self, node: base.NodeId) -> None:
    self.is_dead = False
    self._node = node
    self._entries = queue.Queue[Any]()
    self._measured: list[MeasuredInstruction] = []
    self.round = 0  # Counts calls of `Recorder.forgive`.
    self._error: tuple[int, Exception] | None = None
    self.thread = threading.Thread(target=self._watch, name=f"watch-{node}", daemon=True)
    self.thread.start()

  def add(self, instruction: Instruction, result: Any) -> None:
    now = time.perf_counter()
    self._entries.put((self.round, instruction, now, result))

  def wait(self) -> None:
    self._entries.join()
    failed, self._error = self._error, None
    if failed is not None and failed[0] == self.round:
      raise failed[1]

  def take(self) -> list[MeasuredInstruction]:
    measured, self._measured = self._measured, []
    return measured

  def end(self) -> None:
    self._entries.put(None)

  def _watch(self) -> None:
    last = 0.0
    while (entry := self._entries.get()) is not None:
      number, instruction, dispatched, result = entry
      try:
        jax.block_until_ready(result)
        end = time.perf_counter()
        start = max(last, dispatched)
        if isinstance(result, node_lib.Paced):
          start, end = result.start_secs, result.end_secs
        self._measured.append(MeasuredInstruction(self._node, instruction, start, end))
        last = end
      except Exception as error:  # Raised by `wait`, unless the node died.
        # An error of an older round was forgiven.
        first = self._error is None or self._error[0] < number
        if not self.is_dead and first:
          self._error = number, error
      finally:
        entry = result = None  # Drops the references to the last results.
        self._entries.task_done()
