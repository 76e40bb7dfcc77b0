"""Refuses a table of ticks that computes something else than its rows.

Work is checked by playing the table as rows, arrays by following each slot
through the ticks.
"""

from bamboo_jax.schedule import checker
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.schedule.ticks import table as ticks_lib

Code = ticks_lib.Code
Op = instruction_lib.Op
ScheduleError = checker.ScheduleError

_OPS = {Code.FORWARD: Op.FORWARD, Code.BACKWARD: Op.BACKWARD}


def check(table: ticks_lib.TickTable) -> None:
  """Raises `ScheduleError` unless a program may run `table`."""
  timeline_lib.play(
      as_schedule(table),
      owners=range(table.num_stages),
      microbatches=range(table.num_microbatches),
      costs=costs_lib.uniform_costs(table.num_stages),
  )
  _check_slots(table)


def as_schedule(table: ticks_lib.TickTable) -> instruction_lib.Schedule:
  """Returns the rows of `table`; node `s` owns stage `s`.

  Microbatches are counted from 0. Results are sent at the end of their tick, to
  stages that have a slot for them.
  """
  num_stages = table.num_stages
  rows = {s: [] for s in range(num_stages)}
  transfers = []
  for tick in table.ticks:
    for s in range(num_stages):
      rows[s] += passes(tick, s)
    sent = [
        instruction_lib.Transfer("A", s - 1, tick[s - 1].microbatch, s - 1, s)
        for s in range(1, num_stages)
        if tick[s].arriving_inputs >= 0
    ] + [
        instruction_lib.Transfer("G", s, tick[s + 1].microbatch, s + 1, s)
        for s in range(num_stages - 1)
        if tick[s].arriving_grads >= 0
    ]
    for transfer in sent:
      rows[transfer.source].append(transfer.send)
      rows[transfer.destination].append(transfer.receive)
    transfers += sent
  return instruction_lib.Schedule(
      rows={s: tuple(row) for s, row in rows.items()},
      transfers=tuple(transfers),
  )


def passes(
    tick: tuple[ticks_lib.Tick, ...], stage: int
) -> list[instruction_lib.Instruction]:
  """Returns the passes of `stage` in a tick, in order: at most two."""
  ran, own = [], tick[stage]
  if own.redundant >= 0:
    successor = (stage + 1) % len(tick)
    ran.append(
        instruction_lib.Instruction(
            successor, Op.REDUNDANT_FORWARD, own.redundant
        )
    )
  if own.code in _OPS:
    ran.append(
        instruction_lib.Instruction(stage, _OPS[own.code], own.microbatch)
    )
  return ran


def _check_slots(table: ticks_lib.TickTable) -> None:
  last = table.num_stages - 1
  slots = _Slots(table)
  for t, tick in enumerate(table.ticks):
    for s, own in enumerate(tick):
      where = f"tick {t} of stage {s}"
      if own.redundant >= 0 and s < last:
        slots.read("outputs", s, own.redundant_inputs, own.redundant, where)
      if own.code is Code.FORWARD:
        slots.fill("residual", s, own.residual, own.microbatch, where)
        if own.outputs >= 0:
          slots.fill("outputs", s, own.outputs, own.microbatch, where)
      if own.code is Code.BACKWARD:
        slots.read("residual", s, own.residual, own.microbatch, where)
        if s < last:
          slots.read("grads", s, own.grads, own.microbatch, where)
      if own.code is not Code.IDLE and s > 0:
        slots.read("inputs", s, own.inputs, own.microbatch, where)
    for s, own in enumerate(tick):
      where = f"the end of tick {t} of stage {s}"
      if own.arriving_inputs >= 0:
        sent = tick[s - 1].microbatch
        slots.fill("inputs", s, own.arriving_inputs, sent, where)
      if own.arriving_grads >= 0:
        sent = tick[s + 1].microbatch
        slots.fill("grads", s, own.arriving_grads, sent, where)


class _Slots:
  """Microbatch in each slot of each stage."""

  def __init__(self, table: ticks_lib.TickTable) -> None:
    self._num_slots = {
        "residual": table.num_residual_slots,
        "inputs": table.num_input_slots,
        "grads": table.num_grad_slots,
        "outputs": table.num_output_slots,
    }
    self._held: dict[tuple[str, int, int], int] = {}

  def fill(
      self, kind: str, stage: int, slot: int, microbatch: int, where: str
  ) -> None:
    if not 0 <= slot < self._num_slots[kind]:
      raise ScheduleError(
          f"There is no slot {slot} of {kind} for microbatch {microbatch} in "
          f"{where}, only {self._num_slots[kind]}."
      )
    self._held[kind, stage, slot] = microbatch

  def read(
      self, kind: str, stage: int, slot: int, microbatch: int, where: str
  ) -> None:
    held = self._held.get((kind, stage, slot))
    if held != microbatch:
      holds = "nothing" if held is None else f"microbatch {held}"
      raise ScheduleError(
          f"Slot {slot} of {kind} holds {holds} in {where}, which needs "
          f"microbatch {microbatch}."
      )
