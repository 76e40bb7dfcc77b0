"""The clock of nodes whose layers only take their time.

A device runs its passes one after the other, and whoever dispatches them may be
ahead of it. Here nobody computes: the thread that walks the rows of a process
sleeps until the device of a node would be free for the next instruction.

  walker   F0 to a   F0's output to b   b receives   F0 to b
  real     0.0 s     0.1                0.1003       0.1008
  clock    0.0       0.1                0.1          0.1       b is free at 0.2

What the walker is late itself is not charged, as no device would have waited
for it, but for what it waits for at a receive from another process.
"""

import dataclasses
import time


class Clock:
  """The time of all nodes of a process, in seconds as of `perf_counter`.

  Attributes:
    now_secs: The latest time for which somebody has waited.
  """

  def __init__(self) -> None:
    self.now_secs = 0.0

  def catch_up(self) -> None:
    """Sets the clock to real time."""
    self.now_secs = max(self.now_secs, time.perf_counter())

  def wait_until(self, secs: float) -> None:
    """Blocks until then, if that is to come."""
    _sleep_until(secs)
    self.now_secs = max(self.now_secs, secs)


@dataclasses.dataclass(frozen=True)
class Until:
  """Stands for an array that is ready at a time."""

  secs: float

  def block_until_ready(self) -> None:
    """Blocks until then; JAX calls it."""
    _sleep_until(self.secs)


def _sleep_until(secs: float) -> None:
  left_secs = secs - time.perf_counter()
  if left_secs > 0:
    time.sleep(left_secs)
