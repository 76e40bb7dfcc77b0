"""Fills waits of nodes with redundant forward passes, ahead of time.

For runs in one process and for predictions; see `filling` for clusters. A pass
that fills a wait stands before the receive. It goes there if the wait predicted
by `timeline` is long enough; then the transfer does not start later, and
nothing else moves. Time after a row's last instruction can be filled as well:

  node 0 F0 F1 F2 RF RF RF ...B0   F3 B1    RF B2    ...B3
  node 1 ...F0 F1 RF RF B0    F2 B1   F3 B2    RF B3    RF ...
  node 2 RF RF F0 B0    F1 B1    F2B2    F3 B3    RF RF ......

Nodes 0 and 1 run those of the next stage; the last node those of stage 0, whose
input is the batch.
"""

from collections.abc import Iterator, Mapping, Sequence

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    timeline as timeline_lib,
)

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op

# Waits are differences of sums of durations, in milliseconds.
_ROUNDING_MS = 1e-6


def fill_waits(
    schedule: instruction_lib.Schedule,
    timeline: timeline_lib.Timeline,
    *,
    shadows: Mapping[base.StageId, base.NodeId],
    microbatches: Sequence[int],
    costs: costs_lib.StageCosts,
    margin: float = 0.0,
    until_ms: float = 0.0,
) -> instruction_lib.Schedule:
  """Returns the schedule with all redundant forward passes that fit into waits.

  Early microbatches come first: their residuals protect the step for longer. A
  wait must be longer than its passes by the fraction `margin`; rows may grow at
  their end, up to `until_ms`.
  """
  rows = {}
  for node, row in schedule.rows.items():
    done = {(i.stage, i.microbatch) for i in row if i.op is Op.REDUNDANT_FORWARD}
    todo = [
        Instruction(stage, Op.REDUNDANT_FORWARD, m)
        for m in microbatches
        for stage, shadow in sorted(shadows.items())
        if shadow == node and (stage, m) not in done
    ]
    rows[node] = _fill(timeline.rows[node], todo, costs, margin=margin, until_ms=until_ms)
  return instruction_lib.Schedule(rows)


def find_filled_waits(
    timeline: timeline_lib.Timeline,
) -> Iterator[tuple[list[timeline_lib.Slot], timeline_lib.Slot]]:
  """Yields redundant forward passes right before a receive, and the receive."""
  for row in timeline.rows.values():
    run = []
    for slot in row:
      if slot.instruction.op is Op.REDUNDANT_FORWARD:
        run.append(slot)
        continue
      if run and slot.instruction.is_receive:
        yield run, slot
      run = []


def _fill(
    slots: Sequence[timeline_lib.Slot],
    todo: Sequence[Instruction],
    costs: costs_lib.StageCosts,
    *,
    margin: float,
    until_ms: float,
) -> instruction_lib.Row:
  """Returns the row of a node with the passes of `todo` that fit."""
  row, held = [], holdings_lib.HoldingsLedger()

  def run(i: Instruction) -> None:
    row.append(i)
    held.add(i)

  def use(free_ms: float, factor: float) -> list[Instruction]:
    """Runs passes that take `free_ms` at most; returns the passes left.

    The time of each counts `factor` times.
    """
    free_ms += _ROUNDING_MS
    left: list[Instruction] = []
    for k, i in enumerate(todo):
      if free_ms <= _ROUNDING_MS:
        return [*left, *todo[k:]]
      pass_ms = costs.pass_ms(i) * factor
      has_input = not i.stage or (i.stage - 1, i.microbatch) in held.activations
      if pass_ms <= free_ms and has_input:
        free_ms -= pass_ms
        run(i)
      else:
        left.append(i)
    return left

  now_ms = 0.0
  for slot in slots:
    if slot.instruction.is_receive:
      todo = use(slot.start_ms - now_ms, 1.0 + margin)
    run(slot.instruction)
    now_ms = slot.end_ms
  use(until_ms - now_ms, 1.0)
  return tuple(row)
