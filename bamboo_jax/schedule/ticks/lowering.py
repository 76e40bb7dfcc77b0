"""Lowers the rows of a schedule to a table of ticks."""

from collections.abc import Mapping, Sequence

from bamboo_jax import base
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule.ticks import order as order_lib
from bamboo_jax.schedule.ticks import slots as slots_lib
from bamboo_jax.schedule.ticks import table as table_lib

ORDERS = ("paired", "single")


def lower(
    rows: Mapping[int, instruction_lib.Row],
    *,
    owners: Sequence[int],
    microbatches: Sequence[int],
    costs: costs_lib.StageCosts | None = None,
    order: str = "paired",
    budget: float | None = None,
    start: Mapping[int, table_lib.Held] | None = None,
    most_residuals: int | None = None,
) -> table_lib.TickTable:
  """Returns the ticks that run the passes of `rows`.

  Redundant forward passes are placed anew: ticks have room elsewhere than rows.

  Args:
    rows: What is owed, by node; nodes have any numbers.
    owners: The node of each stage; its stages are neighbours, cyclically.
    microbatches: Of the pipeline, by position.
    order: One of `ORDERS`.
    costs: For the places of redundant forward passes.
    budget: Fraction by which redundant forward passes may lengthen the step: 0
      places the free ones, `math.inf` all of them, None none.
    start: What nodes hold, by number; microbatches by position. The table may
        have it in other slots, and leaves out what nobody needs.
    most_residuals: Microbatches in flight on a node, if that is possible.

  Raises:
    ValueError: Stages of nodes are no neighbours, or rows wait for each other.
  """
  if order not in ORDERS:
    raise ValueError(base.suggest(order, ORDERS, what="order of ticks"))
  nodes = list(dict.fromkeys(owners))
  most = max(owners.count(node) for node in nodes)
  if not table_lib.is_ring(owners):
    raise ValueError(
        "Each node of a program sends to the next one only, got owners "
        f"{[*owners]}."
    )
  position = {m: i for i, m in enumerate(microbatches)}
  held = [(start or {}).get(node, table_lib.NOTHING) for node in nodes]
  work = order_lib.Work(
      owners=tuple(nodes.index(node) for node in owners), start=tuple(held)
  )
  owed = [
      [(i.op, i.stage, position[i.microbatch]) for i in rows[node]]
      for node in nodes
  ]
  passes = order_lib.align(
      owed, work, is_paired=order == "paired", most_residuals=most_residuals
  )
  redundant = {}
  if budget is not None and len(nodes) > 1 and most == 1:
    passes, redundant = order_lib.place_redundant(
        passes, costs=costs, budget=budget, num_microbatches=len(microbatches)
    )
  return slots_lib.assign(
      passes, redundant, work, num_microbatches=len(microbatches)
  )
