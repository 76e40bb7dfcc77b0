"""The division of a checkpoint among members, and their reports. Pure.

Each stage is written by one of its owners; pipelines take turns. So every
member with a stage has about as much to write, and none waits for another.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax.checkpoint import manifest as manifest_lib


@dataclasses.dataclass(frozen=True)
class Save:
  """A checkpoint in the making.

  Attributes:
    name: Tells it apart from other saves, also of the same step.
    step: Number of steps that the state has seen.
    writer: Member that joins the parts: the host of the lowest-numbered owner.
    stages: The stages that each member writes, for members that write any.
  """

  name: str
  step: int
  writer: int
  stages: Mapping[int, tuple[int, ...]]

  @property
  def is_alone(self) -> bool:
    """Whether the writer needs no other member."""
    return self.stages.keys() == {self.writer}


@dataclasses.dataclass(frozen=True)
class Report:
  """What a member says with its vote.

  Attributes:
    begins: Whether a save is to begin; the word of the writer counts.
    is_busy: Whether the save before is still going on, for this member.
    save: Name of the save whose part is reported; None without a report.
    part: What has been written for it; None if that went wrong.
    error: Why there is no part; without a report, why the last save failed.
  """

  begins: bool
  is_busy: bool
  save: str | None = None
  part: manifest_lib.Manifest | None = None
  error: str = ""


def plan_save(name: str, step: int, owners: Sequence[Sequence[int]]) -> Save:
  """Returns the division of work; `owners` by pipeline and stage."""
  stages: dict[int, tuple[int, ...]] = {}
  for stage in range(len(owners[0])):
    member = owners[stage % len(owners)][stage]
    stages[member] = (*stages.get(member, ()), stage)
  writer = min(member for row in owners for member in row)
  return Save(name, step, writer, stages)
