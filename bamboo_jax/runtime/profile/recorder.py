"""Measures when instructions run, without making the walking thread wait.

Programs are dispatched ahead and end later. One thread per node waits for the
results in row order. A device runs its row in order, so an instruction started
when the one before it ended, or when it was dispatched, whichever came later.
"""

from concurrent import futures
import dataclasses
import time
from typing import Any

import jax

from bamboo_jax.schedule import instruction as instruction_lib

Instruction = instruction_lib.Instruction


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
  """An instruction that has run: when it started, and had its results.

  Times are on `time.perf_counter`.
  """

  node: int
  instruction: Instruction
  start_secs: float
  end_secs: float


class Recorder:
  """Measures the instructions of one step after the other."""

  def __init__(self) -> None:
    self._threads: dict[int, futures.ThreadPoolExecutor] = {}
    self._last_secs: dict[int, float] = {}  # When a node ended one, by node.
    self._added: list[tuple[int, futures.Future[Measured]]] = []
    self._num_forgiven = 0  # Of these, the first.
    self._dead: set[int] = set()

  def add(self, node: int, instruction: Instruction, result: Any) -> None:
    """Records `instruction`, which ends when `result`, never donated, does."""
    if node not in self._threads:
      self._threads[node] = futures.ThreadPoolExecutor(1, f"watch-{node}")
    now = time.perf_counter()
    wait = self._threads[node].submit(
        self._wait, node, instruction, now, result
    )
    self._added.append((node, wait))

  def forget(self, node: int) -> None:
    """Drops the unfinished instructions of `node`, which has died."""
    self._dead.add(node)

  def forgive(self) -> None:
    """Ignores the errors of all that was added so far, also those to come.

    They are consequences of a death that is known; blocks on nothing.
    """
    self._num_forgiven = len(self._added)

  def finish(self) -> list[Measured]:
    """Blocks until all that was added has run; raises the first error, once.

    Returns all that ran since the last call, node by node.
    """
    for i, (node, wait) in enumerate(self._added):
      if node not in self._dead and (error := wait.exception()):
        if i >= self._num_forgiven:
          self._num_forgiven = i + 1
          raise error
    ran = [w for _, w in self._added if w.done() and not w.exception()]
    self._added, self._num_forgiven = [], 0
    measured = [wait.result() for wait in ran]
    return sorted(measured, key=lambda m: (m.node, m.start_secs, m.end_secs))

  def close(self) -> None:
    """Ends the threads."""
    for thread in self._threads.values():
      thread.shutdown()

  def _wait(
      self, node: int, instruction: Instruction, dispatched: float, result: Any
  ) -> Measured:
    jax.block_until_ready(result)
    start = max(self._last_secs.get(node, 0.0), dispatched)
    self._last_secs[node] = end = time.perf_counter()
    return Measured(node, instruction, start, end)
