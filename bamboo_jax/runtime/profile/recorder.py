"""Measures when instructions run, without blocking the walking thread.

Programs are dispatched ahead and end later. One thread per node waits for the
results in row order. A device runs its row in order, so an instruction started
when its predecessor ended or when it was dispatched, whichever came later.
"""

import collections
from collections.abc import Collection
from concurrent import futures
import dataclasses
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
    self._threads: dict[base.NodeId, futures.ThreadPoolExecutor] = {}
    self._started: list[tuple[base.NodeId, futures.Future[MeasuredInstruction]]] = []
    self._num_forgiven = 0  # Of the first ones errors are ignored.
    self._last_secs = collections.defaultdict[base.NodeId, float](float)  # End of the last one.

  def add(self, node: base.NodeId, instruction: Instruction, result: Any) -> None:
    """Records `instruction`, which ends when `result` is ready.

    `result` must never be donated.
    """
    if node not in self._threads:
      self._threads[node] = futures.ThreadPoolExecutor(1, f"watch-{node}")
    started = (node, instruction, result, time.perf_counter())
    self._started.append((node, self._threads[node].submit(self._measure, *started)))

  def _measure(
      self, node: base.NodeId, instruction: Instruction, result: Any, dispatched_secs: float
  ) -> MeasuredInstruction:
    """Waits for an instruction, in the thread of its node."""
    jax.block_until_ready(result)
    start_secs, end_secs = max(self._last_secs[node], dispatched_secs), time.perf_counter()
    if isinstance(result, node_lib.Paced):
      start_secs, end_secs = result.start_secs, result.end_secs
    self._last_secs[node] = end_secs
    return MeasuredInstruction(node, instruction, start_secs, end_secs)

  def bury(self, dead: Collection[base.NodeId]) -> None:
    """Drops unfinished instructions of nodes that have died; their threads end by themselves.

    Errors of everything else recorded so far, also later errors, are consequences of a
    death: they are ignored. Does not block.
    """
    for node in self._threads.keys() & dead:
      self._threads.pop(node).shutdown(wait=False, cancel_futures=True)
    good = lambda ended: ended.done() and not ended.cancelled() and not ended.exception()
    self._started = [(n, ended) for n, ended in self._started if n not in dead or good(ended)]
    self._num_forgiven = len(self._started)

  def finish(self) -> list[MeasuredInstruction]:
    """Blocks until everything recorded has run; raises the first error.

    Returns all that ran since the last call, node by node.
    """
    measured = []
    for i, (_, ended) in enumerate(self._started):
      if (error := ended.exception()) is None:
        measured.append(ended.result())
      elif i >= self._num_forgiven:
        self._num_forgiven = i + 1
        raise error
    self._started, self._num_forgiven = [], 0
    self._last_secs.clear()  # Also those of nodes that have died.
    return sorted(measured, key=lambda m: (m.node, m.start_secs, m.end_secs))

  def close(self) -> None:
    for thread in self._threads.values():
      thread.shutdown()
