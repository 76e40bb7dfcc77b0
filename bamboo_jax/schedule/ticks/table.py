"""Lowers the rows of a schedule to a table of ticks, for one program.

A program that runs a whole step moves in lockstep: in a tick each stage runs at
most one forward or backward pass, then all stages exchange results. A tick
lasts as long as its longest operation, so a stage that waits, or runs a forward
pass beside another's backward pass, has room for a redundant forward pass.

The table also places every array: a slot of a buffer is filled, read, and given
to another microbatch after its last use. Within a tick a stage runs the
redundant forward pass, then its own pass, then stores arrivals; a slot read in
a tick may be filled later in the same tick.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule.ticks import order

Code = order.Code


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
  """What one stage does in one tick; -1 stands for nothing.

  Attributes:
    code: Pass of the stage itself.
    microbatch: Of that pass, its position among those of the pipeline.
    redundant: Microbatch of the redundant forward pass for the next stage,
      cyclically.
    residual: Residuals' slot: a forward pass fills it, a backward pass reads
      it.
    inputs: Slot of the received activation, which both passes read. Stage 0
      reads the batch.
    grads: Slot of the received gradient; the last stage has none.
    arriving_inputs: Slot that stores the activation sent by the stage before.
    arriving_grads: Slot that stores the gradient sent by the stage behind.
    outputs: Slot that keeps an output for a redundant forward pass.
    redundant_inputs: Slot of `outputs` that the redundant forward pass reads.
      On the last stage it reads the batch.
  """

  code: Code = Code.IDLE
  microbatch: int = -1
  redundant: int = -1
  residual: int = -1
  inputs: int = -1
  grads: int = -1
  arriving_inputs: int = -1
  arriving_grads: int = -1
  outputs: int = -1
  redundant_inputs: int = -1


@dataclasses.dataclass(frozen=True)
class TickTable:
  """What all stages of a pipeline do in a step.

  `ticks` is by tick, then stage. Each stage has the given number of slots of
  each kind (see `Tick`), at least 1, though stages at the end may need fewer.
  """

  ticks: tuple[tuple[Tick, ...], ...]
  num_residual_slots: int
  num_input_slots: int
  num_grad_slots: int
  num_output_slots: int

  @property
  def num_stages(self) -> int:
    """Number of stages."""
    return len(self.ticks[0])

  @property
  def num_microbatches(self) -> int:
    """Number of microbatches."""
    return 1 + max(tick.microbatch for row in self.ticks for tick in row)

  def as_array(self) -> np.ndarray:
    """Returns int32[ticks, stages, 10], fields in the order of `Tick`."""
    return np.array(
        [[_fields(tick) for tick in row] for row in self.ticks], np.int32
    )


def _fields(tick: Tick) -> tuple[int, ...]:
  return tuple(getattr(tick, f.name) for f in dataclasses.fields(Tick))


def lower(
    schedule: instruction_lib.Schedule,
    *,
    owners: Sequence[int],
    costs: costs_lib.StageCosts,
    budget: float | None = 0.0,
) -> TickTable:
  """Returns the ticks that run the passes of `schedule` in its order.

  Redundant forward passes are placed anew: ticks have room elsewhere than rows.

  Args:
    schedule: Rows that run every microbatch on every stage.
    budget: Fraction by which redundant forward passes may lengthen the step: 0
      places the free ones, `math.inf` all of them, None none.

  Raises:
    ValueError: A node owns several stages, or rows wait for each other.
  """
  passes, redundant = order.align(schedule, owners=owners), {}
  if budget is not None and len(owners) > 1:
    passes, redundant = order.place_redundant(
        passes, costs=costs, budget=budget
    )
  return _assign_slots(passes, redundant)


class _Slots:
  """Places in the buffers of one kind, reused once they are free."""

  def __init__(self, num_stages: int) -> None:
    self._taken: list[dict[int, int]] = [{} for _ in range(num_stages)]
    self.num_slots = 1

  def take(self, stage: int, microbatch: int) -> int:
    """Returns the first free slot, which `microbatch` now holds."""
    taken = self._taken[stage]
    used = set(taken.values())
    taken[microbatch] = next(k for k in range(len(used) + 1) if k not in used)
    self.num_slots = max(self.num_slots, len(taken))
    return taken[microbatch]

  def read(self, stage: int, microbatch: int, *, frees: bool) -> int:
    """Returns the slot of `microbatch`; -1 if it has none."""
    taken = self._taken[stage]
    if frees:
      return taken.pop(microbatch, -1)
    return taken.get(microbatch, -1)


def _assign_slots(
    passes: order.Passes, redundant: dict[tuple[int, int], int]
) -> TickTable:
  """Follows each tick in the order of the module's text."""
  num_stages = len(passes[0])
  wanted = {(s, m) for (_, s), m in redundant.items() if s < num_stages - 1}
  residuals, inputs, grads, outputs = (_Slots(num_stages) for _ in range(4))
  ticks = []
  for t, tick in enumerate(passes):
    row = [
        {"code": code, "microbatch": m, "redundant": redundant.get((t, s), -1)}
        for s, (code, m) in enumerate(tick)
    ]
    for s, fields in enumerate(row):
      code, m, r = fields["code"], fields["microbatch"], fields["redundant"]
      if r >= 0:
        fields["redundant_inputs"] = outputs.read(s, r, frees=True)
      if code is Code.FORWARD:
        fields["residual"] = residuals.take(s, m)
        fields["inputs"] = inputs.read(s, m, frees=False)
        if (s, m) in wanted:
          fields["outputs"] = outputs.take(s, m)
      elif code is Code.BACKWARD:
        fields["residual"] = residuals.read(s, m, frees=True)
        fields["inputs"] = inputs.read(s, m, frees=True)
        fields["grads"] = grads.read(s, m, frees=True)
    for s, (code, m) in enumerate(tick):
      if code is Code.FORWARD and s + 1 < num_stages:
        row[s + 1]["arriving_inputs"] = inputs.take(s + 1, m)
      if code is Code.BACKWARD and s > 0:
        row[s - 1]["arriving_grads"] = grads.take(s - 1, m)
    ticks.append(tuple(Tick(**fields) for fields in row))
  return TickTable(
      ticks=tuple(ticks),
      num_residual_slots=residuals.num_slots,
      num_input_slots=inputs.num_slots,
      num_grad_slots=grads.num_slots,
      num_output_slots=outputs.num_slots,
  )
