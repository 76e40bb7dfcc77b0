"""When the passes of a table of ticks run, and what it fills and wastes."""

import dataclasses

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.schedule.ticks import check
from bamboo_jax.schedule.ticks import table as ticks_lib

Code = ticks_lib.Code
Op = instruction_lib.Op


@dataclasses.dataclass(frozen=True)
class Statistics:
  """What a table of ticks fills and wastes; `plain_*` without redundancy.

  Attributes:
    idle_slots: Ticks, over all stages, without a pass of the stage's own.
    in_idle_slots: Redundant forward passes in idle slots.
    beside_backwards: Redundant forward passes beside a forward pass of the same
      stage, while another stage runs a backward pass.
    bubble: Mean share of `span_ms` in which a stage runs no pass.
  """

  num_ticks: int
  idle_slots: int
  in_idle_slots: int
  beside_backwards: int
  elsewhere: int
  span_ms: float
  plain_span_ms: float
  bubble: float
  plain_bubble: float

  @property
  def num_redundant(self) -> int:
    """Number of redundant forward passes."""
    return self.in_idle_slots + self.beside_backwards + self.elsewhere

  @property
  def overhead(self) -> float:
    """How much longer redundant forward passes make it, as a fraction."""
    return self.span_ms / self.plain_span_ms - 1.0 if self.span_ms else 0.0


def lay_out(
    table: ticks_lib.TickTable, costs: costs_lib.StageCosts
) -> timeline_lib.Timeline:
  """Returns when each pass runs; node `s` owns stage `s`.

  A tick lasts as long as its longest stage, plus the longest transfer. Every
  stage needs as much memory as the greatest: all run the same program.
  """
  slots, start_ms = [], 0.0
  exchange_ms = 2 * max(costs.transfer_ms, default=0.0)
  for tick in table.ticks:
    end_ms = start_ms
    for s in range(table.num_stages):
      at_ms = start_ms
      for i in check.passes(tick, s):
        slots.append(timeline_lib.Slot(s, i, at_ms, at_ms + costs.pass_ms(i)))
        at_ms = slots[-1].end_ms
      end_ms = max(end_ms, at_ms)
    start_ms = end_ms + exchange_ms
  busy_ms = dict.fromkeys(range(table.num_stages), 0.0)
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


def _peak_bytes(table: ticks_lib.TickTable, costs: costs_lib.StageCosts) -> int:
  num_activations = (
      table.num_input_slots + table.num_grad_slots + table.num_output_slots
  )
  return (
      max(costs.resident_bytes)
      + table.num_residual_slots * max(costs.residual_bytes)
      + num_activations * max(costs.activation_bytes)
  )


def find_statistics(
    table: ticks_lib.TickTable, costs: costs_lib.StageCosts
) -> Statistics:
  """Counts the slots that `table` fills and wastes."""
  idle = in_idle = beside = elsewhere = 0
  for tick in table.ticks:
    has_backward = any(own.code is Code.BACKWARD for own in tick)
    for own in tick:
      idle += own.code is Code.IDLE
      if own.redundant < 0:
        continue
      if own.code is Code.IDLE:
        in_idle += 1
      elif own.code is Code.FORWARD and has_backward:
        beside += 1
      else:
        elsewhere += 1
  timeline = lay_out(table, costs)
  plain = lay_out(without_redundant(table), costs)
  return Statistics(
      num_ticks=len(table.ticks),
      idle_slots=idle,
      in_idle_slots=in_idle,
      beside_backwards=beside,
      elsewhere=elsewhere,
      span_ms=timeline.span_ms,
      plain_span_ms=plain.span_ms,
      bubble=timeline.mean_bubble,
      plain_bubble=plain.mean_bubble,
  )


def without_redundant(table: ticks_lib.TickTable) -> ticks_lib.TickTable:
  """Returns `table` without redundant forward passes, for comparison."""
  return dataclasses.replace(
      table,
      ticks=tuple(
          tuple(dataclasses.replace(own, redundant=-1) for own in tick)
          for tick in table.ticks
      ),
  )
