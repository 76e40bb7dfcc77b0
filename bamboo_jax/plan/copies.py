"""The rows of one pipeline as the rows of another that is just like it.

Pipelines with equal partitions differ in the numbers of their nodes and
microbatches only. Renumbering takes less than half the time of planning, and
pipelines planned alike cannot differ.
"""

from bamboo_jax.schedule import instruction
from bamboo_jax.schedule import timeline as timeline_lib


def copy_schedule(
    schedule: instruction.Schedule, *, add_nodes: int, add_microbatches: int
) -> instruction.Schedule:
  """Returns `schedule` with constants added to nodes and microbatches."""
  return instruction.Schedule(
      rows={
          node
          + add_nodes: tuple(
              _copy_instruction(i, add_nodes, add_microbatches) for i in row
          )
          for node, row in schedule.rows.items()
      },
      transfers=tuple(
          instruction.Transfer(
              t.kind,
              t.stage,
              t.microbatch + add_microbatches,
              t.source + add_nodes,
              t.destination + add_nodes,
          )
          for t in schedule.transfers
      ),
  )


def copy_timeline(
    timeline: timeline_lib.Timeline, *, add_nodes: int, add_microbatches: int
) -> timeline_lib.Timeline:
  """Returns `timeline` with constants added to nodes and microbatches."""
  return timeline_lib.Timeline(
      slots=tuple(
          timeline_lib.Slot(
              slot.node + add_nodes,
              _copy_instruction(slot.instruction, add_nodes, add_microbatches),
              slot.start_ms,
              slot.end_ms,
          )
          for slot in timeline.slots
      ),
      span_ms=timeline.span_ms,
      bubbles={n + add_nodes: b for n, b in timeline.bubbles.items()},
      peak_bytes={n + add_nodes: b for n, b in timeline.peak_bytes.items()},
  )


def _copy_instruction(
    i: instruction.Instruction, add_nodes: int, add_microbatches: int
) -> instruction.Instruction:
  return instruction.Instruction(
      i.stage,
      i.op,
      i.microbatch + add_microbatches,
      None if i.peer is None else i.peer + add_nodes,
  )
