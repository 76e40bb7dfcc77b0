"""The times of the passes of a table of ticks."""

from collections.abc import Collection

from bamboo_jax import base
from bamboo_jax.runtime.spmd.ticks import check
from bamboo_jax.runtime.spmd.ticks import tick_table as table_lib
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import timeline as timeline_lib


def lay_out(
    table: table_lib.TickTable,
    costs: costs_lib.StageCosts,
    *,
    peak_bytes: int = 0,
    without: Collection[instruction_lib.Op] = (),
) -> timeline_lib.Timeline:
  """Returns the timeline of a table; operations in `without` take no time.

  A tick lasts as long as its busiest node, plus the longest transfer. All nodes
  need `peak_bytes`.
  """
  slots, start_ms = [], 0.0
  exchange_ms = 2 * max(costs.transfer_ms, default=0.0)
  for tick in table.ticks:
    end_ms = start_ms
    for n, own in base.by_node(tick):
      at_ms = start_ms
      for i in check.passes(own):
        if i.op in without:
          continue
        slots.append(timeline_lib.Slot(n, i, at_ms, at_ms + costs.pass_ms(i)))
        at_ms = slots[-1].end_ms
      end_ms = max(end_ms, at_ms)
    start_ms = end_ms + exchange_ms
  return timeline_lib.Timeline(
      slots=tuple(sorted(slots, key=lambda slot: slot.node)),
      span_ms=start_ms,
      peak_bytes=dict.fromkeys(base.nodes(table.num_nodes), peak_bytes),
  )
