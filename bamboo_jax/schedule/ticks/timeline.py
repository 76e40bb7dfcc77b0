"""When the passes of a table of ticks run, and what it fills and wastes."""

import dataclasses

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.schedule.ticks import check
from bamboo_jax.schedule.ticks import table as table_lib


@dataclasses.dataclass(frozen=True)
class Statistics:
  """What a table of ticks fills and wastes; `plain_*` without redundancy.

  Attributes:
    num_redundant: Redundant forward passes.
    bubble: Mean share of `span_ms` in which a node runs no pass.
  """

  num_ticks: int
  num_redundant: int
  span_ms: float
  plain_span_ms: float
  bubble: float
  plain_bubble: float

  @property
  def overhead(self) -> float:
    """How much longer redundant forward passes make it, as a fraction."""
    return self.span_ms / self.plain_span_ms - 1.0 if self.span_ms else 0.0


def lay_out(
    table: table_lib.TickTable, costs: costs_lib.StageCosts
) -> timeline_lib.Timeline:
  """Returns when each pass runs.

  A tick lasts as long as its busiest node, plus the longest transfer. Every
  node needs as much memory as the greatest: all run the same program.
  """
  slots, start_ms = [], 0.0
  exchange_ms = 2 * max(costs.transfer_ms, default=0.0)
  for tick in table.ticks:
    end_ms = start_ms
    for n, own in enumerate(tick):
      at_ms = start_ms
      for i in check.passes(own):
        slots.append(timeline_lib.Slot(n, i, at_ms, at_ms + costs.pass_ms(i)))
        at_ms = slots[-1].end_ms
      end_ms = max(end_ms, at_ms)
    start_ms = end_ms + exchange_ms
  busy_ms = dict.fromkeys(range(table.num_nodes), 0.0)
  for slot in slots:
    busy_ms[slot.node] += slot.end_ms - slot.start_ms
  return timeline_lib.Timeline(
      slots=tuple(sorted(slots, key=lambda slot: slot.node)),
      span_ms=start_ms,
      bubbles={
          node: 1.0 - ms / start_ms if start_ms else 0.0
          for node, ms in busy_ms.items()
      },
      peak_bytes=dict.fromkeys(busy_ms, _peak_bytes(table, costs)),
  )


def _peak_bytes(table: table_lib.TickTable, costs: costs_lib.StageCosts) -> int:
  slots = table.num_slots
  return (
      max(costs.resident_bytes)
      + slots["residuals"] * max(costs.residual_bytes)
      + (slots["activations"] + slots["grads"]) * max(costs.activation_bytes)
  )


def find_statistics(
    table: table_lib.TickTable, costs: costs_lib.StageCosts
) -> Statistics:
  """Counts what `table` fills and wastes."""
  timeline = lay_out(table, costs)
  plain = lay_out(without_redundant(table), costs)
  return Statistics(
      num_ticks=len(table.ticks),
      num_redundant=sum(
          f.host >= 0 for tick in table.ticks for n in tick for f in n.forwards
      ),
      span_ms=timeline.span_ms,
      plain_span_ms=plain.span_ms,
      bubble=timeline.mean_bubble,
      plain_bubble=plain.mean_bubble,
  )


def without_redundant(table: table_lib.TickTable) -> table_lib.TickTable:
  """Returns `table` without redundant forward passes, for comparison."""
  return dataclasses.replace(
      table,
      ticks=tuple(
          tuple(
              dataclasses.replace(
                  own, forwards=tuple(f for f in own.forwards if f.host < 0)
              )
              for own in tick
          )
          for tick in table.ticks
      ),
  )
