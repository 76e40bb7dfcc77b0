"""Measures the nodes of this member in a step.

Node-seconds go to the account of the run: forward and backward passes are
"useful", or "recovery" on behalf of a lost node; redundant forward passes are
"redundant".

The times of each node, and what delayed it, are judged by `recovery.slowness`,
with those of all other members. How long a thread was ready, but waited for a
processor, comes from the kernel, so a busy machine is not taken for a slow node.
"""

import collections
from collections.abc import Collection, Iterable, Mapping, Sequence
import pathlib
import statistics

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.recovery import decide, durations, layout as layout_lib, slowness
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import instruction as instruction_lib

NodeTime = account_lib.NodeTime
Op = instruction_lib.Op

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
  is_all = recovery.rung not in decide.IMMEDIATE or not heirs and recovery.rung != "drop"
  return [
      m
      for m in measured
      if m.instruction.op in _PASSES
      and m.start_secs >= ready_secs
      and (is_all or (m.node, m.instruction.stage) in heirs)
  ]


def find_passes(
    measured: Iterable[recorder_lib.MeasuredInstruction],
    owed: Collection[recorder_lib.MeasuredInstruction] = (),
) -> dict[base.NodeId, NodeTime]:
  """Returns the time of the passes of each node of which something was measured."""
  found: dict[base.NodeId, dict[str, float]] = {}
  for m in measured:
    secs = found.setdefault(m.node, {})
    if not m.instruction.is_transfer:
      kind = "recovery" if m in owed else "useful"
      kind = "redundant" if m.instruction.op is Op.REDUNDANT_FORWARD else kind
      secs[kind] = secs.get(kind, 0.0) + (m.end_secs - m.start_secs)
  return {node: NodeTime(**secs) for node, secs in found.items()}


def sum_passes(passes: Mapping[base.NodeId, NodeTime], nodes: Collection[base.NodeId]) -> NodeTime:
  """Returns the node time of the passes of `nodes`, local ones that trained until the end.

  Nodes without measurements are assumed to be like the measured ones.
  """
  mine = [passes[node] for node in nodes if node in passes]
  return sum(mine, NodeTime()) * (len(nodes) / max(1, len(mine)))


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


def find_nodes(
    measured: Sequence[recorder_lib.MeasuredInstruction],
    passes: Mapping[base.NodeId, NodeTime],
    *,
    secs: float,
    waited_secs: float,
    starved_secs: float,
    is_alone: bool,
) -> slowness.Step:
  """Returns the times of the local nodes in a step, whose `passes` are in `measured`.

  If this process hosts one node, which `is_alone`, its time outside of waits
  counts as busy, as when the process is suspended.

  Args:
    secs: Since the start of the step.
    waited_secs: For values of others, also if they are gathered.
    starved_secs: Of the thread that runs the rows.
  """
  found = {}
  for node, did in passes.items():
    counts = collections.Counter(
        f"{m.instruction.stage}{m.instruction.op.value}"
        for m in measured
        if m.node == node and m.instruction.op in _PASSES
    )
    if not counts:
      continue
    work = " ".join(f"{k}*{num}" for k, num in sorted(counts.items()))
    busy_secs = did.useful + did.recovery
    found[node] = slowness.NodeStep(work, busy_secs)
    if is_alone:  # Redundant passes fill waits, or do not run.
      busy_secs = max(busy_secs, secs - max(0.0, waited_secs) - did.redundant)
      left_secs = max(0.0, secs - busy_secs)
      found[node] = slowness.NodeStep(work, busy_secs, left_secs, starved_secs)
  return found
