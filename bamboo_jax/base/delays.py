"""How long a thread waits for a processor, and its process is suspended.

Both come from the kernel, so a busy machine is not taken for a slow process:

  thread sleeps 10 ms    ready       runs
  |----------------------|===========|      starved: ready, but others ran
  |-----| SIGSTOP  |-----------------|      suspended: late, but was not ready
"""

import ctypes
import os
import pathlib
import struct
import threading

_PERIOD_SECS = 0.01
_TICK_SECS = 0.001  # The resolution of the meter.
_LEAST_SECS = 0.002  # What a timer may be late.
_CLOCK_MONOTONIC = 1
_SCHEDSTAT = pathlib.Path("/proc/thread-self/schedstat")


def starved_secs() -> float:
  """Returns how long this thread was ready while other programs ran.

  Linux counts it from the start of the thread; elsewhere 0. A suspended thread
  is not ready.
  """
  try:
    return _parse_starved(_SCHEDSTAT.read_bytes())
  except (OSError, IndexError, ValueError):
    return 0.0


class SuspensionMeter:
  """Measures for how long this process is suspended, by a thread that sleeps.

  A timer wakes the thread every 10 ms. What it is late, and did not wait for a
  processor, it could not run: the process was stopped, throttled, or paused
  with its machine. The kernel counts the lateness before the thread returns to
  Python, so other threads that hold the GIL do not count.

  Attributes:
    secs: The time so far; stays 0 where the kernel has no such timers.
  """

  def __init__(self) -> None:
    self.secs = 0.0
    self._is_closed = False
    self._thread = threading.Thread(
        target=self._run, name="suspension", daemon=True
    )
    self._thread.start()

  def close(self) -> None:
    """Ends the thread."""
    self._is_closed = True
    self._thread.join()

  def _run(self) -> None:
    libc = ctypes.PyDLL(None)  # Keeps the GIL from the timer's start to `read`.
    if not hasattr(libc, "timerfd_create") or not _SCHEDSTAT.exists():
      return
    periods = (round(1e9 * _TICK_SECS), 0, round(1e9 * _PERIOD_SECS))
    spec = struct.pack("4q", 0, *periods)
    timer = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC)
    schedstat = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
    try:
      while not self._is_closed:
        before_secs = _parse_starved(os.pread(schedstat, 64, 0))
        libc.timerfd_settime(timer, 0, spec, None)
        (ticks,) = struct.unpack("Q", os.read(timer, 8))
        starved = _parse_starved(os.pread(schedstat, 64, 0)) - before_secs
        late_secs = (ticks - 1) * _TICK_SECS - starved
        if late_secs > _LEAST_SECS:
          self.secs += late_secs
    finally:
      os.close(timer)
      os.close(schedstat)


def _parse_starved(schedstat: bytes) -> float:
  return int(schedstat.split()[1]) / 1e9
