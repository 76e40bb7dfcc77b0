"""The clock of nodes whose layers sleep rather than compute.

A real device runs its passes one after the other, and the dispatching thread
may run ahead of it. A paced node has no device work: the thread that walks the
rows of a process sleeps until the node's device would be free for the next
instruction.

  walker   F0 to a   F0's output to b   b receives   F0 to b
  real     0.0 s     0.1                0.1003       0.1008
  clock    0.0       0.1                0.1          0.1       b is free at 0.2

Delays of the walker itself are not charged, because a device would not have
waited for it; time spent in a receive from another process is. Passes are
recorded with their span on this clock, however busy the machine is.
"""

import dataclasses
import time

import jax

from bamboo_jax import base


class Clock:
  """The time of all nodes of a process, in seconds of `perf_counter`.

  Attributes:
    now_secs: The latest time that has been waited for.
  """

  def __init__(self) -> None:
    self.now_secs = 0.0

  def catch_up(self) -> None:
    """Advances the clock to real time."""
    self.now_secs = max(self.now_secs, time.perf_counter())

  def wait_until(self, secs: float) -> None:
    """Blocks until `secs`; returns at once if it has passed."""
    _sleep_until(secs)
    self.now_secs = max(self.now_secs, secs)


@dataclasses.dataclass(frozen=True)
class Paced:
  """The result of a pass, ready at a given time, with its span on the clock."""

  result: base.PyTree
  start_secs: float
  end_secs: float

  def block_until_ready(self) -> None:
    """Blocks until that time; called by `jax.block_until_ready`."""
    jax.block_until_ready(self.result)
    _sleep_until(self.end_secs)


def _sleep_until(secs: float) -> None:
  left_secs = secs - time.perf_counter()
  if left_secs > 0:
    time.sleep(left_secs)
