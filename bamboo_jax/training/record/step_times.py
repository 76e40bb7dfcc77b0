"""Measures the nodes of this member in a step.

Node-seconds go to the account of the run: forward and backward passes are
"useful", or "recovery" on behalf of a lost node; redundant forward passes are
"redundant".

The times of each node, and what delayed it, are judged by `recovery.slowness`,
with those of all other members. How long a thread was ready, but waited for a
processor, comes from the kernel, so a busy machine is not taken for a slow node.
"""

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import pathlib
import statistics
import time
from typing import TypeVar

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.recovery import durations, ladder, layout as layout_lib, slowness
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import instruction as instruction_lib

NodeTime = account_lib.NodeTime
Op = instruction_lib.Op

_T = TypeVar("_T")
_PASSES = (Op.FORWARD, Op.BACKWARD)
_SCHEDSTAT = pathlib.Path("/proc/thread-self/schedstat")


def find_owed(
    measured: Sequence[recorder_lib.MeasuredInstruction],
    recoveries: Iterable[durations.RecoveryTimes],
    layout: layout_lib.Layout,
) -> tuple[set[recorder_lib.MeasuredInstruction], dict[base.ViewId, tuple[float, float]]]:
  """Returns the owed passes among those of local nodes, and `Measured.owed`.

  The `layout` is that after the step.
  """
  owed, spans = set[recorder_lib.MeasuredInstruction](), {}
  for recovery in recoveries:
    if (ready_secs := recovery.ready_at_secs) is None:
      continue
    if found := _owed_after(ready_secs, measured, recovery, layout):
      owed.update(found)
      first_secs = min(m.start_secs for m in found)
      last_secs = max(m.end_secs for m in found)
      spans[recovery.view] = first_secs - ready_secs, last_secs - ready_secs
  return owed, spans


def _owed_after(
    ready_secs: float,
    measured: Sequence[recorder_lib.MeasuredInstruction],
    recovery: durations.RecoveryTimes,
    layout: layout_lib.Layout,
) -> list[recorder_lib.MeasuredInstruction]:
  """Returns the owed passes of one recovery, whose rest was planned at `ready_secs`.

  They are the passes of lost stages, on nodes that compute for them, that began once the rest
  was planned; another pass may still have been running. All are, if the step is repeated, or
  if other pipelines compute for one that is gone.
  """
  # Its pipeline may be gone, whose place in the layout is that of another one then.
  heirs = {
      (node, segment)
      for place in recovery.places
      for segment in layout.segments_of(place)
      if recovery.rung != "reroute" or place.stage in layout.pipelines[place.pipeline].vacant
      for way in layout.ways
      if way.pipeline == place.pipeline
      for node in way.owners
  }
  is_all = recovery.rung not in ladder.IMMEDIATE or not heirs and recovery.rung != "drop"
  return [
      m
      for m in measured
      if m.instruction.op in _PASSES
      and m.start_secs >= ready_secs
      and (is_all or (m.node, m.instruction.stage) in heirs)
  ]


def measure_passes(
    measured: Sequence[recorder_lib.MeasuredInstruction],
    *,
    nodes: Collection[base.NodeId],
    owed: Collection[recorder_lib.MeasuredInstruction],
) -> NodeTime:
  """Returns the node time of the passes of `nodes`, local ones that trained until the end.

  Nodes without measurements are assumed to be like the measured ones.
  """
  secs = {"useful": 0.0, "recovery": 0.0, "redundant": 0.0}
  mine = [m for m in measured if m.node in nodes]
  for m in mine:
    if m.instruction.op not in instruction_lib.TRANSFERS:
      kind = "recovery" if m in owed else "useful"
      kind = "redundant" if m.instruction.op is Op.REDUNDANT_FORWARD else kind
      secs[kind] += m.end_secs - m.start_secs
  return NodeTime(**secs) * (len(nodes) / max(1, len({m.node for m in mine})))


def sums_of(
    secs: float, *, nodes: Collection[base.NodeId], layout: layout_lib.Layout
) -> dict[base.StageId, float]:
  """Returns `secs`, the time of summing gradients, by segment of `nodes`."""
  rows = [way.owners for way in layout.ways]
  return {s: secs for row in rows for s, n in base.by_stage(row) if n in nodes}


def mean_sums_secs(least: Mapping[base.StageId, float], layout: layout_lib.Layout) -> float:
  """Returns the mean time per node of summing gradients, without waiting.

  All nodes of a segment sum together, and the last to arrive does not wait; so
  the time of a segment is the `least` of its nodes.
  """
  found: dict[base.NodeId, float] = {}
  for way in layout.ways:
    for segment, node in base.by_stage(way.owners):
      found[node] = max(found.get(node, 0.0), least.get(segment, 0.0))
  return statistics.fmean(found.values()) if found else 0.0


def starved_secs() -> float:
  """Returns how long this thread was ready while other programs ran.

  Linux counts it from the start of the thread; elsewhere 0. A suspended thread
  is not ready.
  """
  try:
    return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
  except (OSError, IndexError, ValueError):
    return 0.0


class DelayMeter:
  """Measures a step, from `begin` on.

  Args:
    exchange: Connects this process, which then has one node, with others; None
      without.
    clock: Time in seconds.
    starved: See `starved_secs`.
  """

  def __init__(
      self,
      exchange: transport_lib.Transport | None,
      clock: Callable[[], float] = time.perf_counter,
      starved: Callable[[], float] = starved_secs,
  ) -> None:
    self._exchange, self._clock, self._starved = exchange, clock, starved
    self.begin()

  def begin(self) -> None:
    """Starts a step, in the thread that runs the rows."""
    self._gather_secs = 0.0
    self._received_secs, self._starved_secs = self._waited_secs(), self._starved()
    self._start_secs = self._clock()

  def gather(self, call: Callable[[], _T]) -> _T:
    """Returns the result of a call that waits for the other members."""
    begin_secs = self._clock()
    result = call()
    self._gather_secs += self._clock() - begin_secs
    return result

  def measure(
      self, measured: Iterable[recorder_lib.MeasuredInstruction], *, is_alone: bool
  ) -> slowness.Step:
    """Returns the times of the local nodes in the step so far.

    If this process hosts one node, which `is_alone`, its time outside of receives
    counts as busy, as when the process is suspended.
    """
    secs = self._clock() - self._start_secs
    received_secs = self._waited_secs() - self._received_secs
    unwaited_secs = secs - max(0.0, received_secs + self._gather_secs)
    starved = self._starved() - self._starved_secs  # Of the thread that runs the rows.
    counts: dict[base.NodeId, collections.Counter[str]] = {}
    busy: dict[base.NodeId, float] = {}
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
        busy[node] = busy.get(node, 0.0) + took_secs
    found = {}
    for node, busy_secs in busy.items():
      work = " ".join(f"{k}*{num}" for k, num in sorted(counts[node].items()))
      found[node] = slowness.NodeStep(work, busy_secs)
      if is_alone:
        busy_secs = max(busy_secs, unwaited_secs - spare.get(node, 0.0))
        found[node] = slowness.NodeStep(work, busy_secs, max(0.0, secs - busy_secs), starved)
    return found

  def _waited_secs(self) -> float:
    return self._exchange.waited_secs if self._exchange else 0.0
