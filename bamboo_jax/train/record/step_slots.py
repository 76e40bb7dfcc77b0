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
    Op.SEND_ACTIVATION: "transfer",
    Op.SEND_GRAD: "transfer",
    Op.RECV_ACTIVATION: "transfer",
    Op.RECV_GRAD: "transfer",
}


def planned_slots(
    timelines: Sequence[timeline_lib.Timeline],
) -> tuple[slot_lib.Slot, ...]:
  """Returns what the plan expects each node to do in a step."""
  return tuple(
      slot_lib.Slot(
          track=f"node {slot.node}",
          name=str(slot.instruction),
          start_ms=slot.start_ms,
          end_ms=slot.end_ms,
          category=_CATEGORIES[slot.instruction.op],
      )
      for timeline in timelines
      for slot in timeline.slots
  )


def measured_slots(
    measured: Sequence[recorder_lib.Measured], *, start_secs: float
) -> tuple[slot_lib.Slot, ...]:
  """Returns what each node did in a step that began at `start_secs`."""
  return tuple(
      slot_lib.Slot(
          track=f"node {m.node}",
          name=str(m.instruction),
          start_ms=1e3 * (m.start_secs - start_secs),
          end_ms=1e3 * (m.end_secs - start_secs),
          category=_CATEGORIES[m.instruction.op],
      )
      for m in measured
  )
