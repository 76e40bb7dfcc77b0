"""Puts redundant forward passes into time in which nodes wait.

A pending receive blocks a device, so a pass fills a wait only from before the
receive. It goes there if the wait predicted by `timeline` is long enough; then
the transfer does not start later, and nothing else moves. Time after a row's
last instruction can be filled as well:

  node 0 F0 F1 F2 RF RF RF ...B0   F3 B1    RF B2    ...B3
  node 1 ...F0 F1 RF RF B0    F2 B1   F3 B2    RF B3    RF ...
  node 2 RF RF F0 B0    F1 B1    F2B2    F3 B3    RF RF ......

Nodes 0 and 1 run those of the next stage; the last node those of stage 0, whose
input is the batch.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import timeline as timeline_lib

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op

# Waits are differences of sums of durations, in milliseconds.
_ROUNDING_MS = 1e-6


@dataclasses.dataclass(frozen=True)
class FilledWait:
  """Redundant forward passes right before a receive.

  `wait_ms` is predicted from the start of `redundant` until the receive can
  start, `spare_ms` what is left over of it.
  """

  node: int
  receive: Instruction
  redundant: tuple[Instruction, ...]
  wait_ms: float
  spare_ms: float

  def __str__(self) -> str:
    return (
        f"node {self.node} waits {self.wait_ms:.4g} ms for {self.receive}: "
        f"{' '.join(map(str, self.redundant))}, {self.spare_ms:.4g} ms to spare"
    )


def fill_waits(
    schedule: instruction_lib.Schedule,
    timeline: timeline_lib.Timeline,
    *,
    shadows: Mapping[int, int],
    microbatches: Sequence[int],
    costs: costs_lib.StageCosts,
    holdings: Mapping[int, holdings_lib.Holdings],
    margin: float = 0.0,
    until_ms: float = 0.0,
) -> instruction_lib.Schedule:
  """Returns the schedule with as many more redundant forwards as have room.

  Early microbatches come first: their residuals protect the step for longer. A
  wait must be longer than its passes by the fraction `margin`; rows may grow at
  their end, up to `until_ms`.
  """
  rows = {}
  for node, row in schedule.rows.items():
    held = holdings.get(node, holdings_lib.NOTHING)
    done = held.residuals | {
        (i.stage, i.microbatch) for i in row if i.op is Op.REDUNDANT_FORWARD
    }
    todo = [
        Instruction(stage, Op.REDUNDANT_FORWARD, m)
        for m in microbatches
        for stage, shadow in sorted(shadows.items())
        if shadow == node and (stage, m) not in done
    ]
    rows[node] = _fill(
        timeline.rows[node],
        todo,
        holdings_lib.Ledger(held),
        costs,
        margin=margin,
        until_ms=until_ms,
    )
  return instruction_lib.Schedule(rows, schedule.transfers)


def find_filled_waits(
    timeline: timeline_lib.Timeline,
) -> tuple[FilledWait, ...]:
  """Returns the waits that redundant forward passes fill, node by node."""
  found, run = [], []
  for slot in timeline.slots:
    if run and run[-1].node != slot.node:
      run = []
    if slot.instruction.op is Op.REDUNDANT_FORWARD:
      run.append(slot)
      continue
    if run and slot.instruction.is_receive:
      found.append(
          FilledWait(
              node=slot.node,
              receive=slot.instruction,
              redundant=tuple(s.instruction for s in run),
              wait_ms=slot.start_ms - run[0].start_ms,
              spare_ms=slot.start_ms - run[-1].end_ms,
          )
      )
    run = []
  return tuple(found)


def _fill(
    slots: Sequence[timeline_lib.Slot],
    todo: Sequence[Instruction],
    held: holdings_lib.Ledger,
    costs: costs_lib.StageCosts,
    *,
    margin: float,
    until_ms: float,
) -> instruction_lib.Row:
  """Returns the row of a node with those of `todo` that have room."""
  row = []

  def run(i: Instruction) -> None:
    row.append(i)
    held.add(i)

  def use(free_ms: float, factor: float) -> list[Instruction]:
    """Runs passes that take `free_ms` at most; each counts `factor` times."""
    free_ms += _ROUNDING_MS
    left = []
    for k, i in enumerate(todo):
      if free_ms <= _ROUNDING_MS:
        return left + todo[k:]
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
