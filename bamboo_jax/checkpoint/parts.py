"""The division of a checkpoint among members, and their reports. Pure.

Each stage is written by one of its owners; pipelines take turns. So members
with a stage write about the same amount, and none waits for another.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
from typing import Any, Self

from bamboo_jax import base
from bamboo_jax.checkpoint import manifest as manifest_lib

_SKIPPED = "num_skipped"


@dataclasses.dataclass(frozen=True)
class Save:
  """A checkpoint in the making.

  Attributes:
    name: Unique, even among saves of the same step.
    writer: Member that joins the parts: the host of the lowest-numbered owner.
    stages: The stages that each member writes, for members that write any.
    num_skipped: Skipped steps in a row up to `step`.
  """

  name: manifest_lib.CheckpointName
  writer: base.NodeId
  stages: Mapping[base.NodeId, tuple[base.StageId, ...]]
  num_skipped: int = 0

  @property
  def is_alone(self) -> bool:
    """Whether the writer needs no other member."""
    return self.stages.keys() == {self.writer}

  @property
  def meta(self) -> dict[str, Any]:
    """What the checkpoint's description has of this save, plain JSON values."""
    skipped = {_SKIPPED: self.num_skipped} if self.num_skipped else {}
    return {"save": str(self.name), **skipped}


@dataclasses.dataclass(frozen=True)
class Upload:
  """Bytes that were copied to a bucket, and the time that it took."""

  num_bytes: int = 0
  secs: float = 0.0

  def __add__(self, other: Self) -> Self:
    return type(self)(self.num_bytes + other.num_bytes, self.secs + other.secs)

  def __sub__(self, other: Self) -> Self:
    return type(self)(self.num_bytes - other.num_bytes, self.secs - other.secs)


@dataclasses.dataclass(frozen=True)
class PartsReport:
  """A member's report on checkpoints in its vote.

  Attributes:
    begins: The name of the save to start, without its step and view; "" for none. Only
      the writer's value counts.
    is_busy: Whether this member is still writing the previous save.
    save: Name of the save whose part is reported; None without a report.
    part: Manifest of the written part; None if the write failed.
    upload: That of the part.
    error: Why there is no part; without a report, why the last save failed.
  """

  begins: str
  is_busy: bool
  save: str | None = None
  part: manifest_lib.Manifest | None = None
  error: str = ""
  upload: Upload = Upload()


def describe_uploads(step: base.StepId, uploads: Collection[Upload]) -> dict[str, Any]:
  """Returns the size and rate of an upload by several members at once; {} without any."""
  mib = sum(upload.num_bytes for upload in uploads) / (1 << 20)
  secs = max((upload.secs for upload in uploads), default=0.0)
  return {"saved": step, "mib": mib, "secs": secs, "mib_per_sec": mib / secs} if secs else {}


def num_skipped(meta: Mapping[str, Any]) -> int:
  """Returns that of the save from the description of a checkpoint."""
  return int(meta.get(_SKIPPED, 0))


def is_due(step: base.StepId, after: base.StepId | None, every_steps: int) -> bool:
  """Returns whether a save is due from the step after `after` up to `step`."""
  after = base.StepId(step - 1) if after is None else after
  return every_steps > 0 and step // every_steps > after // every_steps


def plan_save(
    said: Mapping[base.NodeId, PartsReport],
    step: base.StepId,
    *,
    view: base.ViewId,
    owners: Sequence[Sequence[base.NodeId]],
    num_skipped: int = 0,
) -> Save | None:
  """Returns which stages each member writes; None if the writer begins no save.

  `owners` are the members that host each stage, by pipeline.
  """
  writer = min(member for row in owners for member in row)
  name = manifest_lib.CheckpointName.parse(f"{step}.v{view}.{said[writer].begins}")
  if name is None:
    return None
  stages: dict[base.NodeId, tuple[base.StageId, ...]] = {}
  for stage in base.stages(len(owners[0])):
    member = owners[stage % len(owners)][stage]
    stages[member] = (*stages.get(member, ()), stage)
  return Save(name, writer, stages, num_skipped)
