"""Measures when instructions run, without blocking the walking thread.

Programs are dispatched ahead and end later. One thread per node waits for the
results in row order. A device runs its row in order, so an instruction started
when its predecessor ended or when it was dispatched, whichever came later.
"""

from collections.abc import Collection
from concurrent import futures
import dataclasses
import time
from typing import Any, NamedTuple

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


class _Started(NamedTuple):
  """An instruction; `ended` returns when it began, if that is known, and ended."""

  node: base.NodeId
  instruction: Instruction
  dispatched_secs: float
  ended: futures.Future[tuple[float, float]]


class Recorder:
  """Measures the instructions of successive steps."""

  def __init__(self) -> None:
    self._threads: dict[base.NodeId, futures.ThreadPoolExecutor] = {}
    self._started: list[_Started] = []
    self._num_forgiven = 0  # Of the first ones errors are ignored.

  def add(self, node: base.NodeId, instruction: Instruction, result: Any) -> None:
    """Records `instruction`, which ends when `result` is ready.

    `result` must never be donated.
    """
    if node not in self._threads:
      self._threads[node] = futures.ThreadPoolExecutor(1, f"watch-{node}")
    now_secs = time.perf_counter()
    ended = self._threads[node].submit(_wait_for, result)
    self._started.append(_Started(node, instruction, now_secs, ended))

  def bury(self, dead: Collection[base.NodeId]) -> None:
    """Drops unfinished instructions of nodes that have died; their threads end by themselves.

    Errors of everything else recorded so far, also later errors, are consequences of a
    death: they are ignored. Does not block.
    """
    for node in self._threads.keys() & dead:
      self._threads.pop(node).shutdown(wait=False, cancel_futures=True)
    good = lambda ended: ended.done() and not ended.cancelled() and not ended.exception()
    self._started = [s for s in self._started if s.node not in dead or good(s.ended)]
    self._num_forgiven = len(self._started)

  def finish(self) -> list[MeasuredInstruction]:
    """Blocks until everything recorded has run; raises the first error.

    Returns all that ran since the last call, node by node.
    """
    measured, last = [], dict.fromkeys((s.node for s in self._started), 0.0)
    for i, (node, instruction, dispatched_secs, ended) in enumerate(self._started):
      if (error := ended.exception()) is None:
        start_secs, last_secs = ended.result()
        start_secs = start_secs or max(last[node], dispatched_secs)
        measured.append(MeasuredInstruction(node, instruction, start_secs, last_secs))
        last[node] = last_secs
      elif i >= self._num_forgiven:
        self._num_forgiven = i + 1
        raise error
    self._started, self._num_forgiven = [], 0
    return sorted(measured, key=lambda m: (m.node, m.start_secs, m.end_secs))

  def close(self) -> None:
    for thread in self._threads.values():
      thread.shutdown()


def _wait_for(result: Any) -> tuple[float, float]:
  jax.block_until_ready(result)
  if isinstance(result, node_lib.Paced):
    return result.start_secs, result.end_secs
  return 0.0, time.perf_counter()
