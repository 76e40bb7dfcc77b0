"""Node-seconds of the passes of a step, and of its sums of gradients.

Forward and backward passes are "useful", or "recovery" on behalf of a lost
node; redundant forward passes are "redundant".
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import statistics

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.recovery import durations
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import instruction as instruction_lib

NodeTime = account_lib.NodeTime
Op = instruction_lib.Op

_PASSES = (Op.FORWARD, Op.BACKWARD)


def measure(
    measured: Sequence[recorder_lib.MeasuredInstruction],
    *,
    nodes: Collection[base.NodeId],
    layout: layout_lib.Layout,
    recoveries: Sequence[durations.RecoveryTimes],
) -> NodeTime:
  """Returns the node time of the passes of `nodes`.

  Nodes without measurements are assumed to be like the measured ones.

  Args:
    measured: Instructions run in the step.
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
      m.instruction.stage in segments
      and m.end_secs > killed
      and m.node in nodes
      for segments, killed, nodes in lost
  )


def find_owed(
    measured: Iterable[recorder_lib.MeasuredInstruction],
    recovery: durations.RecoveryTimes,
    layout: layout_lib.Layout,
) -> tuple[float, float] | None:
  """Returns start and end of the owed passes on local nodes, None if none.

  Owed are passes of lost stages after the death, or of any stage if the rung
  was not a shadow. Seconds on the clock of `measured`.
  """
  segments = {s for p in recovery.places for s in layout.segments_of(p)}
  owed = [
      m
      for m in measured
      if m.instruction.op in _PASSES
      and (m.instruction.stage in segments or recovery.rung != "shadow")
      and m.start_secs > recovery.view_at_secs
  ]
  if not owed:
    return None
  return min(m.start_secs for m in owed), max(m.end_secs for m in owed)
