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
  receive: instruction_lib.Instruction
  redundant: tuple[instruction_lib.Instruction, ...]
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
  return instruction_lib.Schedule(
      rows={
          node: _Filler(
              [s for s, shadow in sorted(shadows.items()) if shadow == node],
              microbatches,
              costs,
              holdings.get(node, holdings_lib.NOTHING),
              schedule.rows[node],
          ).fill(timeline.rows[node], margin=margin, until_ms=until_ms)
          for node in schedule.rows
      },
      transfers=schedule.transfers,
  )


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


class _Filler:

  def __init__(
      self,
      stages: Sequence[int],
      microbatches: Sequence[int],
      costs: costs_lib.StageCosts,
      holdings: holdings_lib.Holdings,
      row: instruction_lib.Row,
  ) -> None:
    self._costs = costs
    self._held = holdings_lib.Ledger(holdings)
    done = set(holdings.residuals)
    done |= {
        (i.stage, i.microbatch) for i in row if i.op is Op.REDUNDANT_FORWARD
    }
    self._todo = [
        instruction_lib.Instruction(s, Op.REDUNDANT_FORWARD, m)
        for m in microbatches
        for s in stages
        if (s, m) not in done
    ]
    self._row = []

  def fill(
      self,
      slots: Sequence[timeline_lib.Slot],
      *,
      margin: float,
      until_ms: float,
  ) -> instruction_lib.Row:
    now_ms = 0.0
    for slot in slots:
      if slot.instruction.is_receive:
        self._use(slot.start_ms - now_ms, 1.0 + margin)
      self._row.append(slot.instruction)
      self._held.add(slot.instruction)
      now_ms = slot.end_ms
    self._use(until_ms - now_ms, 1.0)
    return tuple(self._row)

  def _use(self, free_ms: float, factor: float) -> None:
    """Adds passes that take `free_ms` at most; each counts `factor` times."""
    free_ms += _ROUNDING_MS
    left = []
    for k, i in enumerate(self._todo):
      if free_ms <= _ROUNDING_MS:
        left += self._todo[k:]
        break
      pass_ms = self._costs.pass_ms(i)
      if pass_ms * factor <= free_ms and self._has_input(i):
        free_ms -= pass_ms * factor
        self._row.append(i)
        self._held.add(i)
      else:
        left.append(i)
    self._todo = left

  def _has_input(self, i: instruction_lib.Instruction) -> bool:
    return i.stage == 0 or (
        (i.stage - 1, i.microbatch) in self._held.activations
    )
