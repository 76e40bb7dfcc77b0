"""Lowers the rows of a schedule to a table of ticks."""

from collections.abc import Mapping, Sequence

from bamboo_jax import base
from bamboo_jax.runtime.spmd.ticks import (
    order as order_lib,
    slots as slots_lib,
    tick_table as table_lib,
)
from bamboo_jax.schedule import costs as costs_lib, instruction as instruction_lib


def lower(
    rows: Mapping[base.NodeId, instruction_lib.Row],
    *,
    owners: Sequence[base.NodeId],
    microbatches: Sequence[int],
    costs: costs_lib.StageCosts | None = None,
    budget: float | None = None,
    start: Mapping[base.NodeId, table_lib.Held] | None = None,
    most_residuals: int | None = None,
) -> table_lib.TickTable:
  """Returns the ticks that run the passes of `rows`.

  Redundant forward passes are placed again, since ticks have other idle times
  than rows.

  Args:
    rows: Owed instructions, by node.
    owners: The node of each stage; a node's stages are contiguous, cyclically.
    microbatches: Microbatches of the pipeline, by position.
    costs: Times, for the places of redundant forward passes.
    budget: Fraction by which redundant forward passes may lengthen the step: 0
      places only free ones, `math.inf` all of them, None none.
    start: Data held by each node; microbatches by position. The table may move
      it to other slots, and omits arrays that are not needed.
    most_residuals: Bound on the microbatches in flight on a node; exceeded if
      the rows would deadlock otherwise.

  Raises:
    ValueError: A node's stages are not contiguous, or rows deadlock.
  """
  nodes = list(dict.fromkeys(owners))
  if not table_lib.is_ring(owners):
    raise ValueError(
        "Each node of a program sends to the next one only, got owners " f"{[*owners]}."
    )
  position = {m: i for i, m in enumerate(microbatches)}
  work = order_lib.Work(
      owners=tuple(nodes.index(node) for node in owners),
      start=tuple((start or {}).get(n, table_lib.NOTHING) for n in nodes),
  )
  owed = [[(i.op, i.stage, position[i.microbatch]) for i in rows[node]] for node in nodes]
  passes = order_lib.align(owed, work, most_residuals=most_residuals)
  redundant: Mapping[tuple[int, int], list[int]] = {}
  if budget is not None and len(nodes) == len(owners) > 1:
    assert costs is not None, "A budget needs costs."
    passes, redundant = order_lib.place_redundant(
        passes, costs=costs, budget=budget, num_microbatches=len(microbatches)
    )
  return slots_lib.assign(passes, redundant, work, num_microbatches=len(microbatches))
