"""The rows of one pipeline as the rows of another that is just like it.

Pipelines with equal partitions differ in the numbers of their nodes and
microbatches only. Renumbering is several times as fast as planning, and nobody
needs to wonder whether two pipelines were planned alike.
"""

from collections.abc import Callable, Iterable
import dataclasses

from bamboo_jax.schedule import instruction
from bamboo_jax.schedule import timeline as timeline_lib

Instruction = instruction.Instruction


@dataclasses.dataclass(frozen=True)
class Rows:
  """The rows of a pipeline, and when their instructions run."""

  schedule: instruction.Schedule
  timeline: timeline_lib.Timeline


def copy_rows(rows: Rows, *, add_nodes: int, add_microbatches: int) -> Rows:
  """Returns `rows` with constants added to nodes and microbatches."""
  schedule, timeline = rows.schedule, rows.timeline
  move = _mover(
      (i for row in schedule.rows.values() for i in row),
      add_nodes=add_nodes,
      add_microbatches=add_microbatches,
  )
  return Rows(
      instruction.Schedule(
          rows={
              node + add_nodes: tuple(map(move, row))
              for node, row in schedule.rows.items()
          },
          transfers=tuple(
              instruction.Transfer(
                  kind=t.kind,
                  stage=t.stage,
                  microbatch=t.microbatch + add_microbatches,
                  source=t.source + add_nodes,
                  destination=t.destination + add_nodes,
              )
              for t in schedule.transfers
          ),
      ),
      timeline_lib.Timeline(
          slots=tuple(
              timeline_lib.Slot(
                  slot.node + add_nodes,
                  move(slot.instruction),
                  slot.start_ms,
                  slot.end_ms,
              )
              for slot in timeline.slots
          ),
          span_ms=timeline.span_ms,
          bubbles={n + add_nodes: b for n, b in timeline.bubbles.items()},
          peak_bytes={n + add_nodes: b for n, b in timeline.peak_bytes.items()},
      ),
  )
