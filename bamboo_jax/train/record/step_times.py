"""Measures the nodes of this member in a step.

Node-seconds go to the account of the run: forward and backward passes are
"useful", or "recovery" on behalf of a lost node; redundant forward passes are
"redundant".

The times of each node, and what delayed it, are judged by `recovery.slowness`,
with those of all other members. How long a thread waits for a processor, and
its process is suspended, comes from the kernel, so a busy machine is not taken
for a slow process:

  thread sleeps 10 ms    ready       runs
  |----------------------|===========|      starved: ready, but others ran
  |-----| SIGSTOP  |-----------------|      suspended: late, but was not ready
"""

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import ctypes
import dataclasses
import os
import pathlib
import statistics
import struct
import threading
import time
from typing import TypeVar

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.recovery import durations, layout as layout_lib, slowness
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import instruction as instruction_lib

NodeTime = account_lib.NodeTime
Op = instruction_lib.Op

_T = TypeVar("_T")
_PASSES = (Op.FORWARD, Op.BACKWARD)
_PERIOD_SECS = 0.01
_TICK_SECS = 0.001  # The resolution of the meter.
_LEAST_SECS = 0.002  # What a timer may be late.
_CLOCK_MONOTONIC = 1
_SCHEDSTAT = pathlib.Path("/proc/thread-self/schedstat")


def measure_passes(
    measured: Sequence[recorder_lib.MeasuredInstruction],
    *,
    nodes: Collection[base.NodeId],
    layout: layout_lib.Layout,
    recoveries: Sequence[durations.RecoveryTimes],
) -> NodeTime:
  """Returns the node time of the passes of `nodes`.

  Nodes without measurements are assumed to be like the measured ones.

  Args:
    nodes: Local nodes that trained until the end of the step.
    layout: The layout after the step.
  """
  useful = redundant = owed = 0.0
  is_owed = _owed_filter(recoveries, layout)
  mine = [m for m in measured if m.node in nodes]
  for m in mine:
    secs = m.end_secs - m.start_secs
    if m.instruction.op is Op.REDUNDANT_FORWARD:
      redundant += secs
    elif m.instruction.op in _PASSES and is_owed(m):
      owed += secs
    elif m.instruction.op in _PASSES:
      useful += secs
  found = NodeTime(useful=useful, redundant=redundant, recovery=owed)
  return found * (len(nodes) / max(1, len({m.node for m in mine})))


def sums_of(
    secs: float, *, nodes: Collection[base.NodeId], layout: layout_lib.Layout
) -> dict[base.StageId, float]:
  """Returns `secs`, the time of summing gradients, by segment of `nodes`."""
  rows = [way.owners for way in layout.ways]
  return {s: secs for row in rows for s, n in base.by_stage(row) if n in nodes}


def mean_sums_secs(
    said: Iterable[Mapping[base.StageId, float]], layout: layout_lib.Layout
) -> float:
  """Returns the mean time per node of summing gradients, without waiting.

  All nodes of a segment sum together, and the last to arrive does not wait; so
  the time of a segment is the least that members have `said`.
  """
  least: dict[base.StageId, float] = {}
  for one in said:
    for segment, secs in one.items():
      least[segment] = min(secs, least.get(segment, secs))
  found: dict[base.NodeId, float] = {}
  for way in layout.ways:
    for segment, node in base.by_stage(way.owners):
      found[node] = max(found.get(node, 0.0), least.get(segment, 0.0))
  return statistics.fmean(found.values()) if found else 0.0


def _owed_filter(
    recoveries: Sequence[durations.RecoveryTimes], layout: layout_lib.Layout
) -> Callable[[recorder_lib.MeasuredInstruction], bool]:
  """Returns a predicate for passes on behalf of a lost node."""
  lost = []  # Segments, time of death, shadows.
  for recovery in recoveries:
    for place in recovery.places:
      heirs = {
          node
          for pipeline, owners, _ in layout.ways
          for node in owners
          if pipeline == place.pipeline
      }
      segments = layout.segments_of(place)
      lost.append((segments, recovery.view_at_secs, heirs))
  return lambda m: any(
      m.instruction.stage in segments and m.end_secs > killed and m.node in nodes
      for segments, killed, nodes in lost
  )


def find_owed(
    measured: Iterable[recorder_lib.MeasuredInstruction],
    recovery: durations.RecoveryTimes,
    layout: layout_lib.Layout,
) -> tuple[float, float] | None:
  """Returns start and end of the owed passes on local nodes, None if none.

  Owed are passes of lost stages, or of any stage if the rung was not a shadow,
  that began once the rest of the step was planned; another pass may still have
  been running. Seconds since then.
  """
  if (ready_secs := recovery.ready_at_secs) is None:
    return None
  segments = {s for p in recovery.places for s in layout.segments_of(p)}
  owed = [
      m
      for m in measured
      if m.instruction.op in _PASSES
      and (m.instruction.stage in segments or recovery.rung != "shadow")
      and m.start_secs >= ready_secs
  ]
  if not owed:
    return None
  first_secs = min(m.start_secs for m in owed)
  return first_secs - ready_secs, max(m.end_secs for m in owed) - ready_secs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delays:
  """Delays of a process in a step; see `slowness.NodeStep`."""

  waited_secs: float = 0.0
  starved_secs: float = 0.0  # Of the thread that runs the rows.
  suspended_secs: float = 0.0
  waited_for: Mapping[base.NodeId, float] = dataclasses.field(default_factory=dict)


class DelayMeter:
  """Measures a step, from `begin` on.

  Args:
    exchange: Connects this process, which then has one node, with others; None
      without.
  """

  def __init__(self, exchange: transport_lib.Transport | None) -> None:
    self._exchange = exchange
    self._meter = SuspensionMeter() if exchange else None
    self.begin()

  def begin(self) -> None:
    """Starts a step, in the thread that runs the rows."""
    self._gather_secs, self._before = 0.0, self._total()
    self._start_secs = time.perf_counter()

  def gather(self, call: Callable[[], _T]) -> _T:
    """Returns the result of a call that waits for the other members."""
    begin_secs = time.perf_counter()
    result = call()
    self._gather_secs += time.perf_counter() - begin_secs
    return result

  def measure(
      self, measured: Iterable[recorder_lib.MeasuredInstruction], *, num_nodes: int
  ) -> slowness.Step:
    """Returns the times of the local nodes in the step so far."""
    now, before = self._total(), self._before
    received_secs = now.waited_secs - before.waited_secs
    return measure_nodes(
        measured,
        secs=time.perf_counter() - self._start_secs,
        delays=Delays(
            waited_secs=max(0.0, received_secs + self._gather_secs),
            starved_secs=now.starved_secs - before.starved_secs,
            suspended_secs=now.suspended_secs - before.suspended_secs,
            waited_for=_subtract(now.waited_for, before.waited_for),
        ),
        is_alone=num_nodes == 1,
    )

  def close(self) -> None:
    """Ends the thread that measures."""
    if self._meter is not None:
      self._meter.close()

  def _total(self) -> Delays:
    exchange = self._exchange
    return Delays(
        waited_secs=exchange.waited_secs if exchange else 0.0,
        starved_secs=starved_secs(),
        suspended_secs=self._meter.secs if self._meter else 0.0,
        waited_for=dict(exchange.waited_for) if exchange else {},
    )


def measure_nodes(
    measured: Iterable[recorder_lib.MeasuredInstruction],
    *,
    secs: float,
    delays: Delays,
    is_alone: bool,
) -> slowness.Step:
  """Returns the times of local nodes in a step.

  Args:
    secs: The duration of the step, waiting included.
    is_alone: Whether the process hosts one node. Then its time outside of
      receives counts as busy, as when the process is suspended.
  """
  counts: dict[base.NodeId, collections.Counter[str]] = {}
  passes: dict[base.NodeId, dict[str, float]] = {}
  # Redundant passes fill waits, or do not run.
  spare: dict[base.NodeId, float] = {}
  for one in measured:
    node, instruction = one.node, one.instruction
    took_secs = one.end_secs - one.start_secs
    if instruction.op is Op.REDUNDANT_FORWARD:
      spare[node] = spare.get(node, 0.0) + took_secs
    elif instruction.op not in instruction_lib.TRANSFERS:
      kind = f"{instruction.stage}{instruction.op.value}"
      counts.setdefault(node, collections.Counter())[kind] += 1
      pass_secs = passes.setdefault(node, {})
      pass_secs[kind] = pass_secs.get(kind, 0.0) + took_secs
  found = {}
  for node, pass_secs in passes.items():
    work = " ".join(f"{k}*{num}" for k, num in sorted(counts[node].items()))
    busy_secs = sum(pass_secs.values())
    found[node] = slowness.NodeStep(work, busy_secs, pass_secs=pass_secs)
    if is_alone:
      free_secs = delays.waited_secs + spare.get(node, 0.0)
      busy_secs = max(busy_secs, secs - free_secs)
      found[node] = dataclasses.replace(
          found[node],
          busy_secs=busy_secs,
          waited_secs=max(0.0, secs - busy_secs),
          starved_secs=delays.starved_secs,
          suspended_secs=delays.suspended_secs,
          waited_for=delays.waited_for,
      )
  return found


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
    self._thread = threading.Thread(target=self._run, name="suspension", daemon=True)
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


def _subtract(
    now: Mapping[base.NodeId, float], before: Mapping[base.NodeId, float]
) -> dict[base.NodeId, float]:
  more = {node: secs - before.get(node, 0.0) for node, secs in now.items()}
  return {node: secs for node, secs in more.items() if secs > 0}
