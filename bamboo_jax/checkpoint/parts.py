"""The division of a checkpoint among members, and their reports. Pure.

Each stage is written by one of its owners; pipelines take turns. So members
with a stage write about the same amount, and none waits for another.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.checkpoint import manifest as manifest_lib


@dataclasses.dataclass(frozen=True)
class Save:
  """A checkpoint in the making.

  Attributes:
    name: Unique, even among saves of the same step.
    step: Number of steps that the state has seen.
    writer: Member that joins the parts: the host of the lowest-numbered owner.
    stages: The stages that each member writes, for members that write any.
  """

  name: str
  step: base.StepId
  writer: base.NodeId
  stages: Mapping[base.NodeId, tuple[base.StageId, ...]]

  @property
  def is_alone(self) -> bool:
    """Whether the writer needs no other member."""
    return self.stages.keys() == {self.writer}


@dataclasses.dataclass(frozen=True)
class PartsReport:
  """A member's report on checkpoints in its vote.

  Attributes:
    begins: Whether to start a save; only the writer's value counts.
    is_busy: Whether this member is still writing the previous save.
    save: Name of the save whose part is reported; None without a report.
    part: Manifest of the written part; None if the write failed.
    error: Why there is no part; without a report, why the last save failed.
  """

  begins: bool
  is_busy: bool
  save: str | None = None
  part: manifest_lib.Manifest | None = None
  error: str = ""


def plan_save(
    name: str, step: base.StepId, owners: Sequence[Sequence[base.NodeId]]
) -> Save:
  """Returns which stages each member writes.

  `owners` are the members that host each stage, by pipeline.
  """
  stages: dict[base.NodeId, tuple[base.StageId, ...]] = {}
  for stage in base.stages(len(owners[0])):
    member = owners[stage % len(owners)][stage]
    stages[member] = (*stages.get(member, ()), stage)
  writer = min(member for row in owners for member in row)
  return Save(name, step, writer, stages)
