"""What a death costs in passes; nobody loses more than the theory says."""

from collections.abc import Collection, Iterable
import dataclasses

from bamboo_jax.schedule.ticks import table as table_lib


@dataclasses.dataclass(frozen=True)
class Redone:
  """The rest of a step after a death.

  Attributes:
    from_host: Backward passes from residuals in host memory.
    again: Forward passes that were run before.
    at_most: Those of the segment in which the node died, and of its stages
      those that its shadow had not run.
  """

  from_host: int
  again: int
  at_most: int


def find_redone(
    before: table_lib.TickTable,
    after: table_lib.TickTable,
    *,
    lost: Collection[int],
    num_ticks: int,
    segment_ticks: int,
) -> Redone:
  """Returns what of `before` is run again in `after`.

  Args:
    lost: Places of the dead in the ring of `before`.
    num_ticks: Of `before`, that were through.
    segment_ticks: Of the segment that was running.
  """
  through = _forwards(before, 0, num_ticks)
  broken = _forwards(before, num_ticks, num_ticks + segment_ticks)
  gone = {
      key
      for n in lost
      for held in [before.start[n]]
      for key in (*held.residuals, *held.host, *held.accumulated)
  }
  gone |= {key for key in through if before.owners[key[0]] in lost}
  kept = {key for held in after.start for key in (*held.residuals, *held.host)}
  ran = _forwards(after, 0, len(after.ticks))
  backwards = [own.backward for row in after.ticks for own in row]
  return Redone(
      from_host=sum(b.host >= 0 for b in backwards),
      again=len(ran & (through | broken | gone)),
      at_most=len(broken | (gone - kept)),
  )


def add_up(parts: Iterable[Redone]) -> Redone:
  """Returns the sum over pipelines."""
  fields = zip(*map(dataclasses.astuple, parts), strict=True)
  return Redone(*map(sum, fields))


def _forwards(
    table: table_lib.TickTable, first: int, stop: int
) -> set[table_lib.Key]:
  """Returns the forward passes of owners in some ticks."""
  return {
      (p.stage, p.microbatch)
      for row in table.ticks[first:stop]
      for own in row
      for p in [own.forward]
      if p
  }
