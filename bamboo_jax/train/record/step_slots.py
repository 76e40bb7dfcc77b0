"""Planned and measured steps as intervals, for traces and pictures."""

from collections.abc import Sequence

from bamboo_jax.metrics import slot as slot_lib
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import timeline as timeline_lib

Op = instruction_lib.Op

_CATEGORIES = {
    Op.FORWARD: "forward",
    Op.REDUNDANT_FORWARD: "redundant",
    Op.BACKWARD: "backward",
}


def planned_slots(
    timelines: Sequence[timeline_lib.Timeline],
) -> tuple[slot_lib.Slot, ...]:
  """Returns what the plan expects each node to do in a step."""
  return tuple(
      _slot(s.node, s.instruction, s.start_ms, s.end_ms)
      for timeline in timelines
      for s in timeline.slots
  )


def measured_slots(
    measured: Sequence[recorder_lib.Measured], *, start_secs: float
) -> tuple[slot_lib.Slot, ...]:
  """Returns what each node did in a step that began at `start_secs`."""
  ms = lambda secs: 1e3 * (secs - start_secs)
  return tuple(
      _slot(m.node, m.instruction, ms(m.start_secs), ms(m.end_secs))
      for m in measured
  )


def _slot(
    node: int,
    instruction: instruction_lib.Instruction,
    start_ms: float,
    end_ms: float,
) -> slot_lib.Slot:
  category = _CATEGORIES.get(instruction.op, "transfer")
  track, name = f"node {node}", str(instruction)
  return slot_lib.Slot(track, name, start_ms, end_ms, category)
