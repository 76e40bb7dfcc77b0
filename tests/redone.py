"""The passes repeated after a death, and their theoretical bound."""

from collections.abc import Collection
import dataclasses

from bamboo_jax.runtime.spmd import executor as executor_lib, ticks as ticks_lib
from bamboo_jax.schedule import instruction


@dataclasses.dataclass(frozen=True)
class Redone:
  """Numbers of passes in the rest of a step after a death.

  Attributes:
    from_host: Backward passes from residuals of redundant passes, in host memory.
    again: Repeated forward passes.
    at_most: Bound on `again`: forward passes of the segment in which the node
      died, and of its stages, except those that its shadow had run.
  """

  from_host: int
  again: int
  at_most: int


def find_redone(
    before: ticks_lib.TickTable,
    after: ticks_lib.TickTable,
    *,
    lost: Collection[int],
    num_ticks: int,
    segment_ticks: int,
) -> Redone:
  """Returns the numbers of passes of `before` that `after`, the table of the rest, repeats.

  `lost` are the places of the dead in the ring of `before`, which had done `num_ticks`.
  """
  through = _forwards(before, 0, num_ticks)
  broken = _forwards(before, num_ticks, num_ticks + segment_ticks)
  gone = {
      key
      for n in lost
      for held in [before.start[n]]
      for key in (*held.residuals, *held.accumulated)
  }
  gone |= {key for key in through if before.owners[key[0]] in lost}
  kept = {key for held in after.start for key in held.residuals}
  ran = _forwards(after, 0, len(after.ticks))
  return Redone(
      from_host=sum(before.owners[stage] in lost for stage, _ in kept),
      again=len(ran & (through | broken | gone)),
      at_most=len(broken | (gone - kept)),
  )


def of_run(run: executor_lib.PipelineRun, former: executor_lib.PipelineRun) -> Redone:
  """Returns the passes of `former` that `run`, which continues it, repeats."""
  size = former.program.sizes.num_ticks
  return find_redone(
      former.table,
      run.table,
      lost=[n for n, o in enumerate(former.nodes) if o not in run.nodes],
      num_ticks=former.segments.num_segments * size,
      segment_ticks=size,
  )


def _forwards(table: ticks_lib.TickTable, first: int, stop: int) -> set[ticks_lib.Key]:
  """Returns the owners' forward passes in ticks `first` to `stop - 1`."""
  passes = (i for row in table.ticks[first:stop] for own in row for i in own.passes)
  return {i.item for i in passes if i.op is instruction.Op.FORWARD}
